"""What a fresh run finds when it holds its log against the broker: is the log the newest there is, or an old copy?

The log's own records, cut off anywhere above its floor, are copies that could have been taken of it and be restored.
Left out: copies from before the last clean-up, batches without rows, brokers that forget, clocks that are wrong, and
what other drivers do between the listing and the reading of the log.
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

BATCHES_APART_MS = 3_600_000
"""All clocks are right, and batches so far apart that it does not matter how right."""

_NAMED_BATCHES = 2


def is_taken_for_old(keys: Keys, broker: Broker) -> bool:
    """Whether a run that starts now is refused, although it has the newest log."""
    return _refused(logs.read(keys, LogView()), _left(broker))


def is_taken_for_new(keys: Keys, broker: Broker) -> bool:
    """Whether a run with some older copy is let go on, and would write rows that are visible already.

    Of a log that was cleaned up, only copies count that name two batches: the product's name a hundred.
    """
    left = _left(broker)
    return any(_would_double(view, broker) and not _refused(view, left) for view in _copies(keys))


def _copies(keys: Keys) -> Iterator[LogView]:
    floor = keys.top.position
    for end in range(floor + 1 if floor else 0, len(keys.records)):
        view = logs.read(keys._replace(records=keys.records[:end]), LogView())
        if floor == 0 or len(view.decisions) >= _NAMED_BATCHES:
            yield view


def _would_double(view: LogView, broker: Broker) -> bool:
    decided = view.newest_decision.batch if view.newest_decision is not None else -1
    return any(rows.batch > decided for rows in broker.visible)


def _refused(view: LogView, left: Mapping[str, list[Trace]]) -> bool:
    return any(traces.not_in_log(view, some) for some in left.values())


def _left(broker: Broker) -> Mapping[str, list[Trace]]:
    """What the broker remembers, by sink."""
    sinks: dict[str, list[Trace]] = {}
    for entry in broker.entries:
        found = TransactionalId.parse(entry.name)
        if found is None:
            continue
        if entry.status == COMMITTED and entry.rows is not None:
            fields = transaction_fields({"id": entry.name, "epoch": entry.epoch})
            begun_ms = entry.rows.batch * BATCHES_APART_MS
            trace = Trace(token=found.token, committed=fields, lane=("id", entry.name), begun_ms=begun_ms)
            sinks.setdefault(found.prefix, []).append(trace)
    return sinks
