"""RabbitMQ streams and queues, as sources and sinks of a query.

- ``server``: the server's address, user and TLS settings
- ``sinks``: publish decided rows to a stream or a queue
- ``stream``: reads streams; ``read_stream`` creates the source
- ``queue``: reads queues, whose messages are stored in the checkpoint; ``read_queue`` creates the source
- ``sources``: the facts about the sources that sparkonce needs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkonce.lazy import lazy as _lazy

if TYPE_CHECKING:
    from sparkonce_rabbitmq.read_queue import read_rabbitmq_queue as read_rabbitmq_queue
    from sparkonce_rabbitmq.read_stream import read_rabbitmq_stream as read_rabbitmq_stream
    from sparkonce_rabbitmq.server import RabbitMQ as RabbitMQ
    from sparkonce_rabbitmq.sinks.queue_sink import RabbitMQQueueSink as RabbitMQQueueSink
    from sparkonce_rabbitmq.sinks.sink import RabbitMQStreamSink as RabbitMQStreamSink

HOMES = {
    "RabbitMQ": "sparkonce_rabbitmq.server",
    "RabbitMQQueueSink": "sparkonce_rabbitmq.sinks.queue_sink",
    "RabbitMQStreamSink": "sparkonce_rabbitmq.sinks.sink",
    "read_rabbitmq_queue": "sparkonce_rabbitmq.read_queue",
    "read_rabbitmq_stream": "sparkonce_rabbitmq.read_stream",
}
"""The public names, with the module that defines each."""

__all__ = sorted(HOMES)
__getattr__, __dir__ = _lazy(__name__, HOMES)
