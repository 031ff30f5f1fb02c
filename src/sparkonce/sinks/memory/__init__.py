"""A two-phase-commit system in this process's memory: the public double of a real one, for tests of pipelines.

It behaves like Kafka where that matters: a transaction belongs to an id and an epoch, times out, and is fenced by an
abort; a commit that is repeated says so.
"""

from sparkonce.sinks.memory.server import MemoryServer
from sparkonce.sinks.memory.sink import MemorySink

__all__ = ["MemoryServer", "MemorySink"]
