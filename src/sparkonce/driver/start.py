"""Looks, before a run claims anything, at its log, its servers, and whether the two belong together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from sparkonce import errors
from sparkonce.checkpoint.files import CheckpointFiles
from sparkonce.driver.outage import Answer, Outage, is_store_outage
from sparkonce.guarantees import Guarantee
from sparkonce.log.base import DecisionLog
from sparkonce.log.holes import check_whole
from sparkonce.protocol.traces import Trace, not_in_log
from sparkonce.protocol.view import LogView, LogViolation, SinkFacts
from sparkonce.sink import Facts, SinkCommitter, TwoPhaseCommitSink

logger = logging.getLogger("sparkonce")

_TRACES_WITHIN_S = 60.0
"""The patience with sinks that do not say what they remember. Each has just passed its preflight."""


def look_around(
    sinks: Mapping[str, TwoPhaseCommitSink],
    committer: Callable[[str], SinkCommitter],
    log: DecisionLog,
    query: str,
    deadline_s: float,
    *,
    all_given: bool = True,
    is_job: bool = False,
) -> tuple[LogView, SinkFacts]:
    """Reads the log, checks every sink, and refuses a log that knows less than a server.

    Args:
        sinks: By name.
        committer: Gives a sink's driver half.
        log: The query's.
        query: The short form of its id.
        deadline_s: How long sinks are asked again what they remember, in seconds; a minute at most.
        all_given: False if the query may have more sinks.
        is_job: True for a batch job: jobs of other names write to the same place.

    Raises:
        LogError: if the log cannot have been written by runs of sparkonce.
        PreflightError: if a system does not allow the guarantee.
        StaleLogError: if a server knows more than the log.
    """
    view = read_log(log, outage=Outage(deadline_s))
    recorded = recorded_facts(view)
    if all_given:
        _warn_of_removed(recorded, sinks, query)
    facts = {name: sink.preflight(query, recorded.get(name)) for name, sink in sorted(sinks.items())}
    _check_facts(facts)
    traces = {
        name: _traces(name, committer(name), query, known, min(deadline_s, _TRACES_WITHIN_S))
        for name, known in facts.items()
        if sinks[name].guarantee is Guarantee.EXACTLY_ONCE
    }
    # Whatever the servers knew when they were asked stands in the log by now, if it is the log of those who did it.
    listed_at, view = view.end, read_log(log, view, Outage(deadline_s))
    for name, left in traces.items():
        if more := not_in_log(view, left, listed_at):
            raise errors.StaleLogError(
                f"Sink {name!r} remembers more of this query than its decision log {log.store.location} does: {more}. "
                "Checkpoint and log were restored from an old copy, or are one of two copies that have both written, "
                "or the log was deleted.",
                next_step="Start from the newest copy of the whole checkpoint folder. To go on from this one, and "
                "write again what was written since, give the sink another prefix, and keep it.",
                sink=name,
            )
    if view.newest_run is None and not is_job:
        for name, known in facts.items():
            _warn_of_others(name, committer, query, known)
    return view, tuple((name, tuple(sorted(known.items()))) for name, known in facts.items())


def _warn_of_others(name: str, committer: Callable[[str], SinkCommitter], query: str, facts: Facts) -> None:
    """Warns of a checkpoint that was deleted, or that the query was not given: all rows are written a second time."""
    try:
        others = committer(name).other_queries(query, facts)
    except errors.UnknownOutcomeError as error:
        logger.debug("Sink %r does not say which other queries have written there: %s", name, error)
        return
    if others:
        logger.warning(
            "This query is new, and where sink %r writes there are finished batches of %s already. If that was the "
            "same job with another checkpoint, its rows are written a second time. Next: start it with its old "
            "checkpoint; if it is another job, nothing.",
            *(name, f"query {others[0]}" if len(others) == 1 else f"{len(others)} other queries"),
        )


def _warn_of_removed(recorded: Mapping[str, Facts], sinks: Mapping[str, TwoPhaseCommitSink], query: str) -> None:
    """Warns of sinks that the query does not have any more: nothing ends what they left open."""
    for name in sorted(recorded.keys() - sinks.keys()):
        if prefix := recorded[name].get("prefix"):
            logger.warning(
                "Sink %r, which this query's last run had, is taken away. If that run did not end cleanly, it may have "
                "left transactions open, whose names begin with %r and hold %r. They hold back readers, or hold locks, "
                "until they time out, if they ever do. Next: start the query once more with the sink, which ends them, "
                "or end them on its server (sparkonce transactions, kafka-transactions.sh).",
                *(name, prefix, query),
            )


def _check_facts(facts: Mapping[str, Facts]) -> None:
    """Refuses facts that are not texts: the log could not be read again."""
    for sink, known in facts.items():
        for name, fact in known.items():
            if not isinstance(fact, str):
                raise errors.PreflightError(
                    f"Sink {sink!r}: the fact {name!r} that its preflight returns is {fact!r}, and not a text.",
                    next_step="Return texts only from TwoPhaseCommitSink.preflight.",
                    sink=sink,
                )


def _traces(name: str, committer: SinkCommitter, query: str, facts: Facts, within_s: float) -> Sequence[Trace]:
    """Returns what a sink remembers of the query; nothing, with a warning, if it does not say.

    The question is a net below the rules, and stops no run that can do without it. Whatever needs the server waits for
    it later: the sweep of older runs, the look for commits that it lost, the first write.
    """
    ask = partial(committer.list_traces, query, facts)
    try:
        return Outage(within_s).retry(ask, f"sink {name!r} does not say what it remembers of this query")
    except (errors.UnknownOutcomeError, errors.OutageError) as error:
        reason = error.message
    except errors.SparkonceError:
        raise  # A verdict, such as that the server went back.
    except Exception as error:  # noqa: BLE001 - a sink that cannot answer this may do all else well
        reason = f"{type(error).__name__}: {error}"
    logger.warning(
        "Sink %r does not say what it remembers of this query: %s. The run starts without knowing if its "
        "checkpoint is an old copy. Next: If it was restored from a copy, stop the query, and start it again when the "
        "sink answers.",
        *(name, reason.rstrip(".")),
    )
    return ()


def warn_if_not_moved(view: LogView, location: str) -> None:
    """Warns if ``checkpoint_moved=True`` has stayed on: it is for the first start in another folder."""
    if view.newest_run is not None and view.newest_run.location == location:
        logger.warning(
            "checkpoint_moved=True, and the decision log has not moved since the last run: %s. As long as the setting "
            "stays, a copy of this checkpoint is not refused. Next: take it out.",
            location,
        )


def read_log(log: DecisionLog, view: LogView | None = None, outage: Outage | None = None) -> LogView:
    """Reads the log on, from where a view ends, and waits for a store that is away as long as the outage has patience.

    Raises:
        LogError: if it cannot be read, or cannot have been written by runs of sparkonce.
    """
    return _asked(log.store.location, partial(log.read, view or LogView()), outage)


def check_log(files: CheckpointFiles, outage: Outage | None = None) -> None:
    """Refuses a log that lacks a record, as `check_whole` does, and waits for a store that is away as `read_log` does.

    Raises:
        LogError: if it lacks one, or its store cannot be read.
    """
    _asked(files.location, partial(check_whole, files), outage)


def _asked(location: str, call: Callable[[], Answer], outage: Outage | None) -> Answer:
    try:
        return (outage or Outage(0.0)).retry(call, "the decision log cannot be read", again=is_store_outage)
    except OSError as error:
        raise errors.LogError(
            f"The decision log {location} cannot be read: {error}.",
            next_step="Make the checkpoint readable for this process's user, or give keys that its store accepts, and "
            "try again; no row is lost.",
        ) from error
    except LogViolation as violation:
        raise errors.LogError(
            f"The decision log {location} contradicts itself: {violation}.",
            next_step="Restore the log together with the checkpoint from one copy; do not edit it.",
        ) from violation


def recorded_topics(view: LogView) -> dict[str, str]:
    """Maps the topics that the newest run read to the ids that it knew of them."""
    return dict(view.newest_run.sources) if view.newest_run is not None else {}


def recorded_facts(view: LogView) -> dict[str, Facts]:
    """Maps the sinks of the newest run to what it knew of them."""
    run = view.newest_run
    return {name: dict(facts) for name, facts in run.sinks} if run is not None else {}
