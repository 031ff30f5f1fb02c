"""Finds the open transactions of a run in its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.records import Claim
from sparkonce.protocol.state import Phase, State


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubt:
    """The transactions that are open.

    Attributes:
        transactions: How many are prepared, and not finished.
        opened_ms: When the oldest was begun, in milliseconds since the epoch; None without one. While slots are being
            prepared, when that began.
    """

    transactions: int = 0
    opened_ms: int | None = None


def in_doubt(state: State | None, since_ms: int) -> Mapping[str, InDoubt]:
    """Returns the open transactions of a run by sink, as far as its state knows them.

    Args:
        state: The run's state; None for none.
        since_ms: When it entered its phase.
    """
    if state is None or state.phase is Phase.ABORTING:  # whose answer ends the run or the attempt
        return {}
    handles = dict.fromkeys(handle for handle in _open(state) if handle.transaction)
    found = {sink: InDoubt(opened_ms=since_ms) for sink in state.transactional if state.phase is Phase.WRITING}
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
