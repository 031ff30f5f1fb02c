"""Finds the open transactions of a run in its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.state import Phase, State
from sparkonce.protocol.view import Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubt:
    """The transactions that are open.

    Attributes:
        transactions: How many are prepared, and not finished.
        opened_ms: When the oldest was begun, in milliseconds since the epoch; None without one. While slots are being
            prepared, when the first one may have been begun.
    """

    transactions: int = 0
    opened_ms: int | None = None


def in_doubt(state: State | None, writing_since_ms: int | None) -> Mapping[str, InDoubt]:
    """Returns the open transactions of a run by sink, as far as its state knows them.

    Args:
        state: The run's state; None for none.
        writing_since_ms: When the first transaction of the slots that are being prepared may have been begun; None if
            none can be open yet, or no more.
    """
    if state is None or state.phase is Phase.ABORTING:  # whose answer ends the run or the attempt
        return {}
    handles = dict.fromkeys(handle for handle in _open(state) if handle.transaction)
    is_writing = state.phase is Phase.WRITING and writing_since_ms is not None
    found = {sink: InDoubt(opened_ms=writing_since_ms) for sink in state.transactional if is_writing}
    for handle in handles:
        known = found.get(handle.sink, InDoubt())
        times = [one for one in (known.opened_ms, handle.opened_ms) if one]
        found[handle.sink] = InDoubt(transactions=known.transactions + 1, opened_ms=min(times, default=None))
    return found


def _open(state: State) -> Iterable[Handle]:
    if state.finishing is not None:
        yield from state.finishing.pending
    if state.writing is not None:
        yield from state.writing.handles
    if state.putting is not None and not isinstance(state.putting.record, Claim):
        yield from state.putting.record.handles
