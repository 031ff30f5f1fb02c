"""Compares the log with what servers remember of the query's runs, to detect a log that was restored from an old copy.

A checkpoint and a log that were restored together from an old copy, or copied to another machine, agree with each
other, so a start looks like an ordinary restart. But the servers remember commits that the log does not contain.

This check is a safety net in addition to the protocol's rules, since servers may forget. It relies on log positions,
batch numbers and producers, never on a clock, so it never rejects the log in which those commits were decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkonce.protocol.handles import Scalar
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Evidence that a run has committed something, as a server remembers it.

    Attributes:
        token: The token of the run.
        committed: The fields of a committed transaction, as in its handle; empty if the trace only shows that the run
            has committed.
        batch: The batch of the transaction; None if the server does not know it.
        lane: The field that names the transaction's lane, which the run reuses for later transactions; None if there
            is no such field.
    """

    token: Token
    committed: tuple[tuple[str, Scalar], ...] = ()
    batch: int | None = None
    lane: tuple[str, Scalar] | None = None


def not_in_log(view: LogView, traces: Sequence[Trace], listed_at: int | None = None) -> str:
    """Describes a commit that the traces show and the log should contain but does not; empty if nothing is missing.

    The log must have been read to its end after the traces were listed. A run claims the log before it writes, and
    decides a batch before it commits the batch. So the runs' own log contains every claim and decision that their
    traces show. Records below the floor are deleted, and traces of those are ignored.

    Args:
        view: The log.
        traces: The traces that a server reported.
        listed_at: The end of the log when the traces were listed; None if nothing has been appended since then.
    """
    return _unknown_run(view, traces) or _unknown_commit(view, traces, view.end if listed_at is None else listed_at)


def _unknown_run(view: LogView, traces: Sequence[Trace]) -> str:
    """Describes a run that has committed but whose claim is not in the log."""
    known = {run.token for run in view.runs}
    oldest = view.runs[0].token.position if view.runs else 0
    strangers = {trace.token for trace in traces if trace.token not in known}
    counted = [token for token in strangers if token.position >= max(view.floor.position, oldest)]
    if not counted:
        return ""
    run = max(counted)
    where = f"this log ends at {view.end}" if run.position >= view.end else "something else stands there in this log"
    return f"run {run.position}-{run.nonce} has committed rows, its claim is at position {run.position}, and {where}"


def _unknown_commit(view: LogView, traces: Sequence[Trace], listed_at: int) -> str:
    """Describes a committed transaction that no decision names, although its decision cannot have been deleted."""
    named = {handle.transaction for decision in view.decisions for handle in decision.handles}
    # A trace shows the last transaction of a lane at the time of the listing. Ignore later decisions: the lane may have
    # been reused after the listed transaction's decision was deleted.
    lanes = {
        field
        for decision in view.decisions
        if decision.position < listed_at
        for handle in decision.handles
        for field in handle.transaction
    }
    newest = view.newest_decision

    def is_strange(trace: Trace) -> bool:
        if not trace.committed or trace.committed in named:
            return False
        if trace.token.position >= view.floor.position or trace.lane in lanes:
            return True
        return newest is not None and trace.batch is not None and trace.batch > newest.batch

    strange = [trace for trace in traces if is_strange(trace)]
    if not strange:
        return ""
    example = " ".join(f"{field}={value}" for field, value in strange[-1].committed)
    return f"no decision in it names {len(strange)} of the committed transactions, for example {example}"
