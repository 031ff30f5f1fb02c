"""Sinks for RabbitMQ: streams, to which the driver publishes decided rows under ids that the server takes once.

For both halves:

- ``sink``: the settings of the sink for streams; it puts the parts together.
- ``connection``: a connection of the stream protocol, also for the source.

On the executors:

- ``messages``: rows as messages, and messages as frames.
- ``routing``: the partition of a super stream that a row goes to.
- ``writer``: lets encoded rows wait.

On the driver:

- ``preflight``: checks the stream.
- ``committer``: commits and aborts, and compares the stream with what it knows.
- ``publishing``: publishes the rows of a batch in order; ``ids`` makes their publishing ids.

For queues:

- ``queue_sink``: the settings of the sink for queues.
- ``queue_rows``: checks rows on the executors.
- ``queue_publisher``: publishes decided rows, on the driver.
- ``amqp``: connections, also for the source.
"""
