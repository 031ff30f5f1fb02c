"""What a run looks at before it claims anything: its log, its servers, and whether the two belong together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from sparkonce import errors
from sparkonce.guarantees import Guarantee
from sparkonce.log.base import DecisionLog
from sparkonce.protocol.records import SinkFacts
from sparkonce.protocol.traces import Trace, not_in_log
from sparkonce.protocol.view import LogView, LogViolation
from sparkonce.sink import Facts, SinkCommitter, TwoPhaseCommitSink

logger = logging.getLogger("sparkonce")

_ASK_AGAIN_S = 0.5


def look_around(
    sinks: Mapping[str, TwoPhaseCommitSink],
    committer: Callable[[str], SinkCommitter],
    log: DecisionLog,
    query: str,
    deadline_s: float,
) -> tuple[LogView, SinkFacts]:
    """Reads the log, checks every sink, and sees that no server knows more than the log.

    Args:
        sinks: By name.
        committer: Gives a sink's driver half.
        log: The query's.
        query: The short form of its id.
        deadline_s: How long servers that cannot be asked are waited for in all, in seconds.

    Raises:
        LogError: if the log cannot have been written by runs of sparkonce.
        PreflightError: if a system does not allow the guarantee.
        StaleLogError: if a server knows more than the log.
        UnknownOutcomeError: if a server could not be asked.
    """
    view = read_log(log)
    recorded = recorded_facts(view)
    _warn_of_removed(recorded, sinks, query)
    facts = {name: sink.preflight(query, recorded.get(name)) for name, sink in sorted(sinks.items())}
    _check_facts(facts)
    give_up_at = time.monotonic() + deadline_s
    while True:
        traces = {
            name: _traces(committer(name), query, known, give_up_at)
            for name, known in facts.items()
            if sinks[name].guarantee is Guarantee.EXACTLY_ONCE
        }
        # Whatever the servers knew when they were asked stands in the log by now, if it is the log of those who did it.
        before, view = view, read_log(log, view)
        if view.floor == before.floor:
            break
        # Another driver has tidied the log meanwhile: what it has forgotten may be among the traces.
        if time.monotonic() >= give_up_at:
            raise errors.UnknownOutcomeError(
                f"the decision log {log.store.location} was tidied up by another driver whenever the sinks were asked "
                f"what they remember, for {deadline_s:.0f} s.",
                next_step="find out which other driver runs on this checkpoint.",
            )
    for name, left in traces.items():
        if more := not_in_log(view, left, before.end):
            raise errors.StaleLogError(
                f"sink {name!r} remembers more of this query than its decision log {log.store.location} does: {more}. "
                "Checkpoint and log were restored from an old copy, or are one of two copies that have both written, "
                "or the log was deleted.",
                next_step="start from the newest copy of the whole checkpoint folder. To go on from this one, and "
                "write again what was written since, give the sink another prefix and keep it (for Kafka: "
                "transactional_id_prefix).",
                sink=name,
            )
    if view.newest_run is None:
        for name, known in facts.items():
            _warn_of_others(name, committer, query, known)
    return view, tuple((name, tuple(sorted(known.items()))) for name, known in facts.items())


def _warn_of_others(name: str, committer: Callable[[str], SinkCommitter], query: str, facts: Facts) -> None:
    """Tells of a checkpoint that was deleted, or that the query was not given: all is written a second time."""
    try:
        others = committer(name).other_queries(query, facts)
    except errors.UnknownOutcomeError as error:
        logger.debug("sink %s: which other queries have written there is not known: %s", name, error)
        return
    if others:
        logger.warning(
            "This query is new, and where sink %r writes there are finished batches of %s already. If that was the "
            "same job with another checkpoint, its rows are written a second time. Next: start it with its old "
            "checkpoint; if it is another job, nothing.",
            *(name, f"query {others[0]}" if len(others) == 1 else f"{len(others)} other queries"),
        )


def _warn_of_removed(recorded: Mapping[str, Facts], sinks: Mapping[str, TwoPhaseCommitSink], query: str) -> None:
    """Nobody asks a system for what a sink has left open there that the query does not have any more."""
    for name in sorted(recorded.keys() - sinks.keys()):
        if prefix := recorded[name].get("prefix"):
            logger.warning(
                "sink %r, which this query's last run had, is taken away. If that run did not end cleanly, its "
                "transactions may be open, whose names begin with %r and hold %r: they hold back readers, or locks, "
                "until they time out, where they do. Start the query once more with the sink, which ends them, or end "
                "them on its server (sparkonce postgres orphans, sparkonce mysql orphans, kafka-transactions.sh).",
                *(name, prefix, query),
            )


def _check_facts(facts: Mapping[str, Facts]) -> None:
    """A log that holds anything but texts there could not be read again."""
    for sink, known in facts.items():
        for name, fact in known.items():
            if not isinstance(fact, str):
                raise errors.PreflightError(
                    f"sink {sink!r}: the fact {name!r} that its preflight returns is {fact!r}, and not a text",
                    next_step="return texts only from TwoPhaseCommitSink.preflight.",
                    sink=sink,
                )


def _traces(committer: SinkCommitter, query: str, facts: Facts, give_up_at: float) -> Sequence[Trace]:
    told = False
    while True:
        try:
            return committer.list_traces(query, facts)
        except errors.UnknownOutcomeError as error:
            left_s = give_up_at - time.monotonic()
            if left_s <= 0:
                raise
            if not told:
                logger.warning("asking again for up to %.0f s what a sink remembers of this query: %s", left_s, error)
                told = True
        time.sleep(_ASK_AGAIN_S)


def warn_if_not_moved(view: LogView, location: str) -> None:
    """Says that ``checkpoint_moved=True`` has stayed on: it is for the first start in another folder."""
    if view.newest_run is not None and view.newest_run.location == location:
        logger.warning(
            "checkpoint_moved=True, and the decision log has not moved since the last run: %s. As long as the setting "
            "stays, a copy of this checkpoint is not refused: take it out.",
            location,
        )


def read_log(log: DecisionLog, view: LogView | None = None) -> LogView:
    """What stands in the log, from where a view ends.

    Raises:
        LogError: if it cannot be read, or cannot have been written by runs of sparkonce.
    """
    try:
        return log.read(view or LogView())
    except OSError as error:
        raise errors.LogError(
            f"the decision log {log.store.location} cannot be read: {error}",
            next_step="make the checkpoint's disk readable and start the query again; no row is lost.",
        ) from error
    except LogViolation as violation:
        raise errors.LogError(
            f"the decision log {log.store.location} contradicts itself: {violation}",
            next_step="restore the log together with the checkpoint from one copy; do not edit it.",
        ) from violation


def recorded_topics(view: LogView) -> dict[str, str]:
    """The ids that the newest run knew of the topics it read, by their names."""
    return dict(view.newest_run.sources) if view.newest_run is not None else {}


def recorded_facts(view: LogView) -> dict[str, Facts]:
    """What the newest run knew of its sinks, by name."""
    run = view.newest_run
    return {name: dict(facts) for name, facts in run.sinks} if run is not None else {}
