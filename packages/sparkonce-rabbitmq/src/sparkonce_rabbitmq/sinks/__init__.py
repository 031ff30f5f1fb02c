"""Sinks for RabbitMQ. The driver publishes decided rows. A stream accepts the publishing id of each row only once.

Shared by both sides:

- ``sink``: the settings of the sink for streams; it connects the parts
- ``connection``: a connection of the stream protocol, also used by the source

On the executors:

- ``messages``: encodes rows as messages, which wait until they are decided, and packs messages into frames
- ``routing``: chooses the partition of a super stream for each row

On the driver:

- ``preflight``: checks the stream
- ``committer``: commits and aborts, and compares the stream's contents with the recorded ones
- ``publishing``: publishes the rows of a batch in order, under ids that every process computes

For queues:

- ``queue_sink``: the settings of the sink for queues, and the checks of its rows on the executors
- ``queue_publisher``: publishes decided rows, on the driver
- ``amqp``: connections, also used by the source
"""
