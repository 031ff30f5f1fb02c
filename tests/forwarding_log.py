"""A decision log that forwards to another one. Tests override the call that they observe or break."""

from __future__ import annotations

from collections.abc import Sequence

from sparkonce.decision_log import DecisionLog, Landed, Taken


class ForwardingLog(DecisionLog):
    """Forwards every call for bytes to another log."""

    def __init__(self, inner: DecisionLog) -> None:
        self._inner = inner

    def put_bytes(self, position: int, data: bytes) -> Landed | Taken:
        return self._inner.put_bytes(position, data)

    def read_bytes(self, position: int) -> Sequence[bytes]:
        return self._inner.read_bytes(position)

    def floor_bytes(self) -> bytes | None:
        return self._inner.floor_bytes()

    def raise_floor_bytes(self, position: int, data: bytes) -> None:
        self._inner.raise_floor_bytes(position, data)

    def delete_below(self, position: int) -> None:
        self._inner.delete_below(position)

    @property
    def location(self) -> str:
        return self._inner.location
