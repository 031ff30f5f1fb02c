"""A log store in another one's place: a test changes the call that it wants to watch or to break."""

from __future__ import annotations

from collections.abc import Sequence

from sparkonce.log import Landed, LogStore, Taken


class ForwardingStore(LogStore):
    """Passes every call on to another store."""

    def __init__(self, inner: LogStore) -> None:
        self._inner = inner

    def put(self, position: int, data: bytes) -> Landed | Taken:
        return self._inner.put(position, data)

    def read(self, position: int) -> Sequence[bytes]:
        return self._inner.read(position)

    def floor(self) -> bytes | None:
        return self._inner.floor()

    def raise_floor(self, position: int, data: bytes) -> None:
        self._inner.raise_floor(position, data)

    def delete_below(self, position: int) -> None:
        self._inner.delete_below(position)

    @property
    def location(self) -> str:
        return self._inner.location
