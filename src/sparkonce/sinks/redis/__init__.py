"""Redis: rows staged there by workers, and applied by scripts once the batch is decided.

``sink`` puts the parts together. On the executors: ``shape`` says which columns make which commands, ``encoding`` turns
Arrow batches into chunks of them, ``writer`` stages or applies chunks. On the driver: ``preflight`` checks the server,
``committer`` has staged chunks applied, and ``outcomes`` says what each answer means. ``scripts`` holds what runs
inside Redis, ``names`` the keys, ``nodes`` the connections, ``hash_slots`` the arithmetic of a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkonce.sinks.redis.sink import RedisSink as RedisSink

__all__ = ["RedisSink"]


def __getattr__(name: str) -> Any:
    if name != "RedisSink":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sparkonce.sinks.redis.sink import RedisSink

    return RedisSink
