"""Ends a query's open transactions, without Spark and without the query's program.

`resolve` commits and aborts as the query's next start would, according to its log, in a run that writes no rows.
`abort_all` is for a query whose checkpoint is gone and whose decisions are therefore unknown.
"""

from __future__ import annotations

import os
import pwd
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sparkonce.arguments import one_of
from sparkonce.decision_log import FOLDER, DecisionLog
from sparkonce.driver.outage import Outage, Timing
from sparkonce.driver.split_run import SplitRun
from sparkonce.driver.start import ResumePoint, check_accepted, read_log
from sparkonce.driver.stops import stop_error
from sparkonce.errors import ConfigurationError, PreflightError, RefusedBatchError, SparkonceError, UnknownOutcomeError
from sparkonce.operate.checkpoint import OPERATOR, settled
from sparkonce.operate.systems import known_sinks, sinks_to_finish
from sparkonce.protocol.events import BatchAsked
from sparkonce.protocol.handles import FINAL, Finished, Handle
from sparkonce.protocol.state import State
from sparkonce.protocol.view import LogView, Run
from sparkonce.sink import Owner, SinkCommitter, TwoPhaseCommitSink
from sparkonce.sinks._shared.orphans import Orphan, run_of, token_in
from sparkonce.sinks.sql.settings import CONFLICTS
from sparkonce.sinks.sql.sink import SqlSink
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles
from sparkonce.version import __version__

_TRIES = 5
"""The number of attempts to catch up with a query that is still running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The result of `resolve`.

    Attributes:
        run: The token of the run, as ``position-nonce``.
        batch: The decided batch that may have been unfinished, if there was one.
        committed: The number of that batch's transactions that are now committed.
        lost: The number of that batch's transactions that are lost. Only the query's next start can rewrite their rows.
        swept: The sinks in which older runs no longer have open transactions.
        left: The query's other sinks, which the file does not describe.
    """

    run: str
    batch: int | None = None
    committed: int = 0
    lost: int = 0
    swept: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        """True if there is nothing left to do."""
        return not self.lost and not self.left


class OperatorRun(SplitRun):
    """A run by an operator. Its claim repeats the newest run's facts, so that the next start finds them."""

    has_all_sinks = False  # The operator's file may not describe all sinks.

    def _first_state(self, **arguments: Any) -> State:
        state = super()._first_state(**arguments)
        newest = _newest(state.view)
        sinks = tuple(sorted({**dict(state.claim.sinks), **dict(newest.sinks)}.items()))
        known = replace(state.claim, location=newest.location, sinks=sinks, sources=newest.sources)
        return replace(state, claim=known)


def resolve(
    files: CheckpointFiles,
    sinks: Mapping[str, TwoPhaseCommitSink],
    *,
    moved: bool = False,
    accept_lost: Mapping[str, int] | None = None,
    on_conflict: str = "",
    patience_s: float = 60.0,
) -> Resolved:
    """Commits the transactions of a decided batch, and aborts all other transactions of the query's runs so far.

    The run begins with a claim, so a driver that is still running is superseded and stops. The log and the sinks are
    checked the way they are when the query starts.

    Args:
        files: The query's checkpoint.
        sinks: The query's sinks, by name. To finish a decided batch, all sinks with transactions in it are required.
        moved: Like ``checkpoint_moved`` of `sparkonce.ExactlyOnce`.
        accept_lost: Like ``accept_lost_batches`` of `sparkonce.ExactlyOnce`.
        on_conflict: See `SqlSink.decided_conflicts`; empty to leave conflicting rows staged.
        patience_s: How long to wait for an unreachable system, in seconds.

    Raises:
        SparkonceError: For the same reasons as a start of the query.
        OSError: If the checkpoint's store cannot be read.
    """
    _check_owner(files)
    _let_conflict(sinks, on_conflict)
    for _ in range(_TRIES):
        try:
            done = _tried(files, sinks, moved=moved, accept_lost=accept_lost or {}, patience_s=patience_s)
        except RefusedBatchError:  # A driver that is still running may have decided a batch since then.
            if _refused(*_point(files), moved=moved) is not None:
                raise
            continue
        if done is not None:
            return done
    raise PreflightError(
        f"The query of {files.location!r} keeps advancing: it was further each of the {_TRIES} times that it was read.",
        next_step="Stop its driver, or try again.",
    )


def abort_all(
    query: str, sink: TwoPhaseCommitSink, listed: Sequence[Orphan], *, patience_s: float
) -> Mapping[str, int]:
    """Aborts the listed transactions of a query, without its log. Rows that were decided but not committed are lost.

    Returns the number of transactions by outcome.

    Raises:
        UnknownOutcomeError: If some transactions may still be open.
    """
    facts = sink.preflight(query, None)
    tokens = sorted({token_in(one.run) for one in listed if one.query == query})
    with closing(sink.committer()) as committer:
        found = committer.list_lingering([Owner(query=query, token=token, facts=facts) for token in tokens])
        handles = [handle for handle in found if any(one.is_of(handle) for one in listed)]
        doing = f"what is open in sink {sink.name!r} is to be aborted"
        answers = Outage(patience_s).retry(partial(_aborted, committer, handles), doing)
    return Counter(answer.outcome.value for answer in answers)


def newest_run(files: CheckpointFiles) -> Run:
    """Returns the run that owns a query's log; raises ConfigurationError if there is no log next to a checkpoint."""
    return _newest(_point(files)[1].view)


def _tried(
    files: CheckpointFiles,
    sinks: Mapping[str, TwoPhaseCommitSink],
    *,
    moved: bool,
    accept_lost: Mapping[str, int],
    patience_s: float,
) -> Resolved | None:
    """Makes one attempt. Returns None if another run claimed the query while servers were being queried."""
    found, point = _point(files)
    if (refused := _refused(found, point, moved=moved)) is not None:
        raise refused
    check_accepted(accept_lost, point.next_batch().number)
    _check_sinks(point, sinks)
    log = DecisionLog(files)  # Reading creates no folders, but a run may need them.
    run = OperatorRun(
        run=f"{OPERATOR}{uuid.uuid4()}",
        query=str(point.checkpoint.query_id()),
        sinks=sinks,
        log=log,
        timing=Timing(outage_patience_s=patience_s),
        library=__version__,
        accept_lost=accept_lost,
    )
    try:
        # Querying the servers took a while, and a driver that is still running may have continued.
        claimed, point = point.view.newest_run, ResumePoint.of(files, read_log(log, point.view))
        if point.view.newest_run != claimed:
            return None
        _check_sinks(point, sinks)
        asked = point.next_batch()
        first = BatchAsked(batch=asked.number, offsets=asked.offsets, previous_offsets=asked.previous_offsets)
        handover = run.begin_batch(first)
        _, token = run.owned
        done = Resolved(run=run_of(token), left=tuple(sorted(sinks_to_finish(point.view) - sinks.keys())))
        if handover is None:  # The decided batch is committed. Begin the next batch, which sweeps.
            progress = run.progress[-1]
            newest = run.state.view.newest_decision
            offsets = newest.offsets if newest is not None else None
            try:
                run.begin_batch(BatchAsked(batch=first.batch + 1, offsets=(), previous_offsets=offsets))
            except SparkonceError as error:
                error.message = (
                    f"Batch {first.batch} is committed. What older runs left open was not ended: {error.message}"
                )
                raise
            return replace(done, batch=first.batch, committed=progress.transactions, swept=tuple(sorted(sinks)))
        if (finishing := run.state.finishing) is not None:  # The batch was decided, and some of it is lost.
            transactions = {one.key for one in finishing.decision.handles if one.transaction}
            committed = len(finishing.committed & transactions)
            return replace(done, batch=first.batch, committed=committed, lost=len(finishing.lost))
        return replace(done, swept=tuple(sorted(sinks)))
    finally:
        run.close()


def _let_conflict(sinks: Mapping[str, TwoPhaseCommitSink], on_conflict: str) -> None:
    if not on_conflict:
        return
    one_of("on_conflict", on_conflict, CONFLICTS)
    merging = [sink for sink in sinks.values() if isinstance(sink, SqlSink)]
    for sink in merging:
        sink.decided_conflicts = on_conflict
    if not merging:
        raise ConfigurationError(
            f"on_conflict={on_conflict!r}: none of the sinks {sorted(sinks)} merges rows into a table with keys.",
            next_step="Leave it out.",
            setting="on_conflict",
        )


def _newest(view: LogView) -> Run:
    run = view.newest_run
    if run is None:
        raise ConfigurationError("The decision log has no run yet.", next_step="Nothing: nothing can be open.")
    return run


def _point(files: CheckpointFiles) -> tuple[DecisionLog, ResumePoint]:
    log, _, point = settled(files)
    if log is None:
        raise ConfigurationError(
            f"{files.location!r} has no decision log: no run of sparkonce has begun there.",
            next_step="Nothing, if the checkpoint is the right one: nothing can be open.",
        )
    if point.checkpoint.query_id() is None:
        raise ConfigurationError(
            f"{files.location!r} has a decision log, and Spark's file `metadata` is missing.",
            next_step="Restore the checkpoint and the log together, from one copy. A batch job that writes by a format "
            "has no such file: run the job again.",
        )
    return log, point


def _refused(log: DecisionLog, point: ResumePoint, *, moved: bool) -> SparkonceError | None:
    """Returns the error if the log does not allow a start; None if it does."""
    stop = point.refusal(log.location, moved=moved)
    return None if stop is None else stop_error(stop, point.next_batch().number)


def _check_sinks(point: ResumePoint, sinks: Mapping[str, TwoPhaseCommitSink]) -> None:
    """Checks, before the claim, that no required sink is missing."""
    if not sinks:
        raise ConfigurationError(
            "The file describes none of the query's sinks, so nothing can be ended.",
            next_step=(
                f"Describe them: the query has {sorted(known_sinks(point.view))}. If they are created with the "
                "program's own functions, start the query instead."
            ),
        )
    batch = point.next_batch().number
    decision = point.view.decision(batch)
    if decision is None:
        return
    needed = {handle.sink for handle in decision.handles if handle.transaction}
    if missing := sorted(needed - sinks.keys()):
        raise ConfigurationError(
            f"Batch {batch} is decided, and has transactions in {missing}, which the file does not describe.",
            next_step=(
                "Add them to the file. If a sink is created with the program's own functions, start the query "
                "instead: it commits the batch first."
            ),
        )


def _check_owner(files: CheckpointFiles) -> None:
    """Refuses to write records that the query's own user could not read."""
    records = files.folder / FOLDER / "records" if isinstance(files, LocalFiles) else None
    if records is None or not records.is_dir() or (owner := records.stat().st_uid) == os.geteuid():
        return
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"#{owner}"
    raise ConfigurationError(
        f"{str(records)!r} belongs to the user {name}, who could not read a record of this process's user.",
        next_step=f"Run the command as that user: sudo -u {name} sparkonce ….",
    )


def _aborted(committer: SinkCommitter, handles: Sequence[Handle]) -> Sequence[Finished]:
    answers = committer.abort(handles)
    if waiting := [one for one in answers if one.outcome not in FINAL]:
        raise UnknownOutcomeError(
            f"{len(waiting)} of {len(handles)} transactions may not be aborted: {waiting[0].reason}",
            next_step=waiting[0].next_step or "Run the command again.",
        )
    return answers
