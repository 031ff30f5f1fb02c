"""A two-phase-commit system in this process's memory: the public test double of a real one.

Transactions behave as in Kafka: they time out, an abort fences their writer, and a repeated commit is recognized.

- ``server``: the system: transactions, visible rows, and injected faults
- ``sink``: the sink that writes to it
"""

from sparkonce.sinks.memory.server import MemoryServer
from sparkonce.sinks.memory.sink import MemorySink

__all__ = ["MemoryServer", "MemorySink"]
