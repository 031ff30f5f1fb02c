"""Sinks for RabbitMQ. The driver publishes decided rows; a stream accepts each row's publishing id only once.

Shared by both sides:

- ``sink``: the settings of the sink for streams; it connects the parts
- ``connection``: a connection of the stream protocol, also used by the source

On the executors:

- ``messages``: rows as messages, which wait until they are decided, and messages as frames
- ``routing``: the partition of a super stream to which a row goes

On the driver:

- ``preflight``: checks the stream
- ``committer``: commits and aborts, and compares the stream with what it should have
- ``publishing``: publishes the rows of a batch in order, under ids that every process computes

For queues:

- ``queue_sink``: the settings of the sink for queues, and the checks of its rows on the executors
- ``queue_publisher``: publishes decided rows, on the driver
- ``amqp``: connections, also used by the source
"""
