"""A two-phase-commit system in this process's memory: the public double of a real one, for tests of pipelines.

A transaction behaves as in Kafka: it times out, an abort fences its writer, and a repeated commit is answered as such.

- ``server``: the system: transactions, what is visible, and faults on request
- ``sink``: the sink that writes to it
"""

from sparkonce.sinks.memory.server import MemoryServer
from sparkonce.sinks.memory.sink import MemorySink

__all__ = ["MemoryServer", "MemorySink"]
