"""What a fresh run finds when it holds its log against the broker: is the log the newest there is, or an old copy?

The log's own records, cut off anywhere, are every copy that could have been taken of it and be restored now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from model import log as logs
from model.broker import COMMITTED, Broker
from model.log import Keys
from sparkonce.protocol import traces
from sparkonce.protocol.handles import transaction_fields
from sparkonce.protocol.ownership import TransactionalId
from sparkonce.protocol.traces import Trace
from sparkonce.protocol.view import LogView

_NAMED_BATCHES = 2


def is_taken_for_old(keys: Keys, broker: Broker) -> bool:
    """Whether a run that starts now is refused, although it has the newest log."""
    return _refused(logs.read(keys, LogView()), _left(broker))


def is_taken_for_new(keys: Keys, broker: Broker, *, disturbed: bool) -> bool:
    """Whether a run with some older copy is let go on, and would write rows that are visible already.

    Of a log that was cleaned up, some copies do not count:

    - those that name one batch only: the product's name a hundred;
    - if anything went wrong, those of whose commits the broker shows none any more: losers may have taken all the lanes
      that the copy knows, while others wrote.
    """
    left = _left(broker)
    return any(
        _would_double(view, broker) and _counts(view, left, disturbed) and not _refused(view, left)
        for view in _copies(keys)
    )


def _copies(keys: Keys) -> Iterator[LogView]:
    floor = keys.top.position
    for end in range(floor + 1 if floor else 0, len(keys.records)):
        yield logs.read(keys._replace(records=keys.records[:end]), LogView())


def _counts(view: LogView, left: Mapping[str, list[Trace]], disturbed: bool) -> bool:
    if view.floor.position == 0:
        return True
    named = {handle.transaction for decision in view.decisions for handle in decision.handles}
    shown = any(trace.committed in named for some in left.values() for trace in some if trace.committed)
    return len(view.decisions) >= _NAMED_BATCHES and (shown or not disturbed)


def _would_double(view: LogView, broker: Broker) -> bool:
    decided = view.newest_decision.batch if view.newest_decision is not None else -1
    return any(rows.batch > decided for rows in broker.visible)


def _refused(view: LogView, left: Mapping[str, list[Trace]]) -> bool:
    return any(traces.ahead_of(view, some) for some in left.values())


def _left(broker: Broker) -> Mapping[str, list[Trace]]:
    """What the broker remembers, by sink."""
    sinks: dict[str, list[Trace]] = {}
    for entry in broker.entries:
        found = TransactionalId.parse(entry.name)
        if found is None:
            continue
        trace = Trace(token=found.token)
        if entry.status == COMMITTED and entry.rows is not None:
            fields = transaction_fields({"id": entry.name, "epoch": entry.epoch})
            trace = Trace(token=found.token, committed=fields, lane=("id", entry.name), begun=entry.rows.batch)
        sinks.setdefault(found.prefix, []).append(trace)
    return sinks
