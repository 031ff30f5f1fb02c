"""The checks at each start, before a run claims the log and before it finishes or writes a batch.

- `check_before_claim` reads the log, checks every sink, and rejects a log that lacks commits that a server remembers.
- `check_servers` detects a server that was restored to an older state: from a backup, by failing over to a replica that
  lagged, or because a disk lost confirmed writes. The server then lacks rows that readers have already seen, and Spark
  would not write them again.
- `ResumePoint` finds the batch at which a query resumes, from its checkpoint and log alone.
- `mend` repairs Spark's checkpoint after the machine crashed. Spark never calls fsync, so a file that it wrote in the
  last half minute before a power failure may be empty afterwards. A run makes Spark's files durable before each
  decision, so either no decision needs an empty file, or the log has its content.
"""

from __future__ import annotations

import json
import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sparkonce import errors
from sparkonce.decision_log import DecisionLog, check_whole
from sparkonce.driver.outage import Answer, Outage, is_store_outage, never
from sparkonce.guarantees import Guarantee
from sparkonce.protocol import effects as do
from sparkonce.protocol.coordinator import refusal
from sparkonce.protocol.handles import COMMITTED, Handle, Outcome
from sparkonce.protocol.state import Batch, State
from sparkonce.protocol.traces import Trace, not_in_log
from sparkonce.protocol.view import Claim, Decision, LogView, LogViolation, SinkFacts
from sparkonce.sink import Facts, SinkCommitter, TwoPhaseCommitSink
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.offsets import without_files
from sparkonce.storage.spark_checkpoint import SparkCheckpoint

logger = logging.getLogger("sparkonce")
_TRACES_WITHIN_S = 60.0
"""The longest wait for sinks to list their traces. Each has just passed its preflight."""


def check_before_claim(
    sinks: Mapping[str, TwoPhaseCommitSink],
    committer: Callable[[str], SinkCommitter],
    log: DecisionLog,
    query: str,
    deadline_s: float,
    *,
    has_all_sinks: bool = True,
) -> tuple[LogView, SinkFacts]:
    """Reads the log, checks every sink, and rejects a log that lacks commits that a server remembers.

    Requests to the store and the sinks are retried until the deadline, but requests for traces only for a minute.

    Raises:
        LogError: If the log contains a record that no run of sparkonce can have written.
        PreflightError: If a system does not allow the guarantee.
        StaleLogError: If a server remembers commits that the log does not contain.
    """
    view = read_log(log, outage=Outage(deadline_s))
    recorded = recorded_facts(view)
    if has_all_sinks:
        _warn_of_removed(recorded, sinks, query)
    facts = {name: sink.preflight(query, recorded.get(name)) for name, sink in sorted(sinks.items())}
    _check_facts(facts)
    traces = {
        name: _traces(name, committer(name), query, known, min(deadline_s, _TRACES_WITHIN_S))
        for name, known in facts.items()
        if sinks[name].guarantee is Guarantee.EXACTLY_ONCE
    }
    # A decision is always logged before its commits. A log that is read after the traces were listed therefore contains
    # the decision for every listed commit, unless the log is an old copy.
    listed_at, view = view.end, read_log(log, view, Outage(deadline_s))
    for name, left in traces.items():
        if more := not_in_log(view, left, listed_at):
            raise errors.StaleLogError(
                f"Sink {name!r} remembers more of this query than its decision log {log.location} does: {more}. "
                "Checkpoint and log were restored from an old copy, or are one of two copies that have both written, "
                "or the log was deleted.",
                next_step="Start from the newest copy of the whole checkpoint folder. To go on from this one, and "
                "write again what was written since, give the sink another prefix, and keep it.",
                sink=name,
            )
    return view, tuple((name, tuple(sorted(known.items()))) for name, known in facts.items())


def _warn_of_removed(recorded: Mapping[str, Facts], sinks: Mapping[str, TwoPhaseCommitSink], query: str) -> None:
    """Warns about removed sinks, because no run will end the transactions that they left open."""
    for name in sorted(recorded.keys() - sinks.keys()):
        if prefix := recorded[name].get("prefix"):
            logger.warning(
                "Sink %r, which this query's last run had, was removed. If that run did not end cleanly, it may have "
                "left transactions open, whose names begin with %r and hold %r. They block readers, or hold locks, "
                "until they time out, if ever. Next: start the query once more with the sink, which ends them, or end "
                "them on its server (sparkonce transactions, kafka-transactions.sh).",
                *(name, prefix, query),
            )


def _check_facts(facts: Mapping[str, Facts]) -> None:
    """Rejects facts that are not strings, because a log with other values could not be read back."""
    for sink, known in facts.items():
        for name, fact in known.items():
            if not isinstance(fact, str):
                raise errors.PreflightError(
                    f"Sink {sink!r}: the fact {name!r} that its preflight returns is {fact!r}, which is not a string.",
                    next_step="Return only strings from TwoPhaseCommitSink.preflight.",
                    sink=sink,
                )


def _traces(name: str, committer: SinkCommitter, query: str, facts: Facts, within_s: float) -> Sequence[Trace]:
    """Returns the traces that a sink has of the query. If the sink does not respond, logs a warning and returns none.

    Traces are only a safety net, so the run starts without them if necessary. The steps that need the server wait for
    it later: the sweep of older runs, the check for lost commits, and the first write.
    """
    ask = partial(committer.list_traces, query, facts)
    try:
        return Outage(within_s).retry(ask, f"sink {name!r} does not report what it remembers of this query")
    except (errors.UnknownOutcomeError, errors.OutageError) as error:
        reason = error.message
    except errors.SparkonceError:
        raise  # This answer is final: the server may have been restored to an older state, for example.
    except Exception as error:  # noqa: BLE001 - everything else in the sink may still work
        reason = f"{type(error).__name__}: {error}"
    logger.warning(
        "Sink %r does not report what it remembers of this query: %s. The run starts without knowing whether its "
        "checkpoint is an old copy. Next: If it was restored from a copy, stop the query, and start it again once the "
        "sink responds.",
        *(name, reason.rstrip(".")),
    )
    return ()


def warn_if_not_moved(view: LogView, location: str) -> None:
    """Warns if ``checkpoint_moved=True`` is still set. It is meant for the first start in another folder."""
    if view.newest_run is not None and view.newest_run.location == location:
        logger.warning(
            "checkpoint_moved=True, but the decision log has not moved since the last run: %s. While this is set, a "
            "copy of this checkpoint is not refused. Next: Remove the setting.",
            location,
        )


def read_log(log: DecisionLog, view: LogView | None = None, outage: Outage | None = None) -> LogView:
    """Reads the log from the end of a view. Waits for an unreachable store as long as ``outage`` permits.

    Raises:
        LogError: If the log cannot be read, or contains a record that no run of sparkonce can have written.
    """
    return _asked(log.location, partial(log.read, view or LogView()), outage)


def check_log(files: CheckpointFiles, outage: Outage | None = None) -> None:
    """Rejects a log that lacks a record (see `check_whole`). Waits for an unreachable store as `read_log` does.

    Raises:
        LogError: If a record is missing, or the store cannot be read.
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
    """Maps the topics that the newest run read to the ids that they had at that time."""
    return dict(view.newest_run.sources) if view.newest_run is not None else {}


def recorded_facts(view: LogView) -> dict[str, Facts]:
    """Maps each sink of the newest run to its facts."""
    run = view.newest_run
    return {name: dict(facts) for name, facts in run.sinks} if run is not None else {}


def check_accepted(accepted: Mapping[str, int], batch: int) -> None:
    """Checks that only finished batches are accepted as lost."""
    if any(newest >= batch for newest in accepted.values()):
        raise errors.ConfigurationError(
            f"accept_lost_batches={dict(accepted)!r}: batch {batch} is next, and only earlier batches are finished.",
            next_step="Give what StaleServerError reported, or leave it out.",
        )


def check_servers(
    effect: do.CheckServers,
    committer: Callable[[str], SinkCommitter],
    accepted: Mapping[str, int],
    patience_s: float,
    is_stopped: Callable[[], bool] = never,
) -> None:
    """Checks that each server still has the newest batch that is known to be finished there.

    If a failover lost only the commit of a transaction that is still prepared, the commit is repeated and no rows are
    lost. ``accepted`` has, for each sink, the newest batch that may be missing.

    Raises:
        ConfigurationError: If an accepted batch is not finished.
        StaleServerError: If a server was restored to an older state.
        UnknownOutcomeError: If a server could not be reached.
    """
    check_accepted(accepted, effect.batch)
    outage = Outage(patience_s, is_stopped=is_stopped)
    missing: dict[str, list[int]] = {}
    for name in effect.sinks:
        finished = _finished(effect.view, effect.batch, name, accepted.get(name, -1))
        doing = f"sink {name} must still have what was committed"
        if not finished:
            continue
        if outage.retry(partial(_is_gone, committer(name), finished[-1], name), doing):
            missing[name] = [
                one.batch for one in finished if outage.retry(partial(committer(name).missing, _own(one, name)), doing)
            ]
    if missing:
        raise errors.StaleServerError(
            "; ".join(f"sink {name!r} no longer has {_words(batches)}" for name, batches in missing.items())
            + (
                ". They were committed there: the server returned to an older state (a restored backup, a failover "
                "to a lagging replica, a disk that lost confirmed writes)."
            ),
            next_step=(
                "restore the newer state, if there is one, and start again. Otherwise, look there for the rows of "
                "these batches (sparkonce checkpoint batch CHECKPOINT NUMBER says how many each slot has, and in "
                "which transaction), write those that are missing manually, and continue with ExactlyOnce(..., "
                f"accept_lost_batches={ {name: batches[-1] for name, batches in missing.items()} })."
            ),
            missing=missing,
        )


def _finished(view: LogView, batch: int, sink: str, accepted: int) -> list[Decision]:
    """Lists the finished batches with rows in a sink that were written with its current facts, oldest first.

    A transaction that was written with different facts may only seem missing because the prefix or target has changed.
    """
    facts = [dict(run.sinks).get(sink) for run in view.runs]
    changed = max((index for index, one in enumerate(facts) if one != facts[-1]), default=-1)
    same = {run.token for run in view.runs[changed + 1 :]}
    return [one for one in view.decisions if accepted < one.batch < batch and one.token in same and _own(one, sink)]


def _own(decision: Decision, sink: str) -> list[Handle]:
    return [handle for handle in decision.handles if handle.sink == sink and handle.transaction]


def _is_gone(committer: SinkCommitter, decision: Decision, sink: str) -> bool:
    """Returns True if the server has lost the batch and cannot commit it again."""
    handles = _own(decision, sink)
    missing = committer.missing(handles)
    if not missing:
        return False
    answers = committer.commit(missing)
    if waiting := [answer.reason for answer in answers if answer.outcome is Outcome.RETRY]:
        raise errors.UnknownOutcomeError(waiting[0])
    if not all(answer.outcome in COMMITTED for answer in answers):
        return True
    committer.conclude(decision.batch, handles)
    logger.warning(
        "sink=%s batch=%d: the server had lost the commit, and has committed it again.", sink, decision.batch
    )
    return bool(committer.missing(handles))


def _words(batches: Sequence[int]) -> str:
    if len(batches) == 1:
        return f"batch {batches[0]}"
    between = "and" if len(batches) == 2 else "to"
    return f"batches {batches[0]} {between} {batches[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The point at which a query resumes, according to its checkpoint and its log.

    Attributes:
        checkpoint: Spark's checkpoint, as it was when the query was started.
        view: The content of its decision log.
        batch: The newest batch that Spark has planned; -1 if there is none.
        is_done: True if Spark has recorded that this batch is done, or there is no batch.
    """

    checkpoint: SparkCheckpoint
    view: LogView
    batch: int
    is_done: bool

    @classmethod
    def of(cls, checkpoint: CheckpointFiles, view: LogView) -> ResumePoint:
        """Reads the checkpoint in this store."""
        spark = SparkCheckpoint(checkpoint)
        batch = spark.begun()
        return cls(checkpoint=spark, view=view, batch=batch, is_done=batch < 0 or spark.is_finished(batch))

    @property
    def awaits_commit(self) -> bool:
        """True if the newest batch was decided and may be unfinished.

        The next start commits it first, without reading input.
        """
        return not self.is_done and self.view.decision(self.batch) is not None

    def description(self) -> str:
        """Describes the point for the user; empty for a new query."""
        if self.batch < 0:
            return ""
        if self.is_done:
            return f"Resuming after batch {self.batch}."
        if self.awaits_commit:
            return f"Batch {self.batch} was decided and may not be finished: it is committed first."
        return f"Batch {self.batch} was not decided: its open transactions are aborted, and it is written again."

    def refusal(self, location: str, *, moved: bool = False) -> do.Stop | None:
        """Returns the stop if the log does not allow the first batch of the next start; None if it does.

        The offsets of a batch that Spark has not planned yet are not compared.

        Args:
            location: The location of the log; see `sparkonce.decision_log.DecisionLog.location`.
            moved: The value of ``checkpoint_moved``.
        """
        query = self.checkpoint.query_id() or "no query"
        claim = Claim(nonce="", run="", query=query, location=location)
        return refusal(State(claim=claim, moved=moved, view=self.view, batch=self.next_batch()))

    def next_batch(self) -> Batch:
        """Returns the batch that Spark asks for next.

        If Spark has not planned the batch, its offsets come from its decision; none without a decision.
        """
        number = self.batch + 1 if self.is_done else self.batch
        before = self.checkpoint.input_offsets(number - 1) if number else None
        offsets = None if self.is_done else self.checkpoint.input_offsets(number)
        newest = self.view.newest_decision
        if offsets is None:  # The batch is not planned, or its file is incomplete. Either way, Spark plans it again.
            offsets = newest.offsets if newest is not None and newest.batch == number else ()
        return Batch(number=number, offsets=offsets, previous_offsets=before)


def mend(checkpoint: SparkCheckpoint, view: LogView) -> None:
    """Rewrites those empty files of Spark whose content is in the decision log. No driver may be running on them.

    Raises:
        CheckpointMismatchError: If other files are empty. If they can be deleted safely, the message has the command.
    """
    files = checkpoint.files
    empty = set(files.emptied())
    if not empty:
        return
    run = view.newest_run
    if "metadata" in empty and run is not None:
        _write(checkpoint, "metadata", json.dumps({"id": run.query}))
        empty.discard("metadata")
    for name in sorted(empty):
        folder, _, number = name.partition("/")
        decision = view.decision(int(number)) if folder == "offsets" and number.isdigit() else None
        if decision is not None:
            lines = ["v1", _header(checkpoint, decision.batch), *map(without_files, decision.offsets)]
            _write(checkpoint, name, "\n".join(lines))
            empty.discard(name)
    if empty:
        _refuse(checkpoint, sorted(empty), view)


def _write(checkpoint: SparkCheckpoint, name: str, text: str) -> None:
    files = checkpoint.files
    folder, _, file = name.rpartition("/")
    files.delete([f"{folder}/.{file}.crc".lstrip("/")])  # Spark's checksum of the lost content
    files.replace(name, text.encode())
    logger.warning("A crash of the machine emptied %s/%s: rewritten from the decision log.", files.location, name)


def _header(checkpoint: SparkCheckpoint, batch: int) -> str:
    """Returns the second line of ``offsets/N``, with watermark and settings, copied from the previous batch."""
    before = (checkpoint.files.read(f"offsets/{batch - 1}") or b"").decode(errors="replace").splitlines()
    header = json.loads(before[1]) if len(before) > 1 else {"batchWatermarkMs": 0, "conf": {}}
    return json.dumps({**header, "batchTimestampMs": time.time_ns() // 1_000_000}, separators=(",", ":"))


def _refuse(checkpoint: SparkCheckpoint, empty: list[str], view: LogView) -> None:
    newest = view.newest_decision
    decided = -1 if newest is None else newest.batch
    lines = enumerate(newest.offsets if newest is not None else ())
    # Maps the number of each file source to the last entry in its log that the newest decided batch has read.
    listed = {str(source): int(json.loads(line)["logOffset"]) for source, line in lines if '"logOffset"' in line}
    lost = [name for name in empty if not _may_go(name, decided, listed)]
    may_go, planned = set(empty), checkpoint.begun()
    # Spark lists a batch's files again only if it plans the batch again.
    if planned > decided and checkpoint.is_unrecorded(planned) and any(one.startswith("sources/") for one in empty):
        may_go.add(f"offsets/{planned}")
    location = checkpoint.files.location
    paths = " ".join(shlex.quote(f"{location}/{name}") for name in sorted(may_go))
    raise errors.CheckpointMismatchError(
        f"checkpoint={location!r}: a crash of the machine emptied {', '.join(lost or empty)}, which Spark had written "
        "and not made durable.",
        next_step=f"Batch {decided} is decided and needs them: restore the checkpoint with its log from a copy."
        if lost
        else f"Delete them, no decided batch needs them and Spark writes them again: rm {paths}",
    )


def _may_go(name: str, decided: int, listed: dict[str, int]) -> bool:
    """Returns True if a file can be deleted, because Spark will write it again."""
    folder, _, rest = name.partition("/")
    if folder == "sources":
        source, _, entry = rest.partition("/")
        return int(entry.removesuffix(".compact")) > listed.get(source, -1)
    return folder == "commits" or (folder == "offsets" and int(rest) > decided) or (name == "metadata" and decided < 0)
