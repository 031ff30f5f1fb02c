"""Compares copies of the log with the broker, as a new run does, to find out whether the log is an old copy.

Each prefix of the log's records above its floor is a copy that could have been made and restored. The broker is queried
twice: as a database, which knows each transaction's batch, and as Kafka, which knows its lane.

This shows that the newest log is never rejected, no matter what happened. If the server knows batches, it also shows
that a copy that would write visible rows again is always rejected. If the server knows lanes, this holds for logs that
were never cleaned up; otherwise, only for copies that name a lane that has committed again since.

Left out: copies from before the last clean-up, batches without rows, brokers that forget, and what other drivers do
between listing the traces and reading the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from model import log as logs
from model.broker import COMMITTED, Broker
from model.log import Keys
from sparkonce.protocol import traces
from sparkonce.protocol.handles import transaction_fields
from sparkonce.protocol.ownership import TransactionalId
from sparkonce.protocol.traces import Trace
from sparkonce.protocol.view import LogView

Left = Mapping[str, list[Trace]]
"""What a server remembers, by sink."""


def is_taken_for_old(keys: Keys, broker: Broker) -> bool:
    """Returns True if a run that starts now is refused although it has the newest log."""
    return _refused(logs.read(keys, LogView()), _left(broker))


def is_taken_for_new(keys: Keys, broker: Broker) -> bool:
    """Returns True if a run with some older copy is accepted and would write rows that are already visible."""
    left = _left(broker)
    by_batch, by_lane = _without(left, "lane"), _without(left, "batch")
    return any(
        not _refused(view, by_batch)
        or ((view.floor.position == 0 or _is_used_again(view, left)) and not _refused(view, by_lane))
        for view in _copies(keys)
        if _would_double(view, broker)
    )


def _copies(keys: Keys) -> Iterator[LogView]:
    floor = keys.top.position
    for end in range(floor + 1 if floor else 0, len(keys.records)):
        yield logs.read(keys._replace(records=keys.records[:end]), LogView())


def _would_double(view: LogView, broker: Broker) -> bool:
    return any(rows.batch > _newest(view) for rows in broker.visible)


def _newest(view: LogView) -> int:
    return view.newest_decision.batch if view.newest_decision is not None else -1


def _is_used_again(view: LogView, left: Left) -> bool:
    """Returns True if a lane in the copy has committed a batch that the copy does not know."""
    named = {str(handle["id"]) for one in view.decisions for handle in one.handles if handle.transaction}
    return any(
        dict(one.committed)["id"] in named and (one.batch or 0) > _newest(view)
        for some in left.values()
        for one in some
    )


def _refused(view: LogView, left: Left) -> bool:
    return any(traces.not_in_log(view, some) for some in left.values())


def _without(left: Left, field: str) -> Left:
    return {sink: [replace(trace, **{field: None}) for trace in some] for sink, some in left.items()}


def _left(broker: Broker) -> Left:
    sinks: dict[str, list[Trace]] = {}
    for entry in broker.entries:
        found = TransactionalId.parse(entry.name)
        if found is not None and entry.status == COMMITTED and entry.rows is not None:
            fields = transaction_fields({"id": entry.name, "epoch": entry.epoch})
            trace = Trace(token=found.token, committed=fields, batch=entry.rows.batch, lane=("id", entry.name))
            sinks.setdefault(found.prefix, []).append(trace)
    return sinks
