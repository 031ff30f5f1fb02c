"""Compares the log with what servers remember of the query's runs, to detect a log that was restored from an old copy.

If a checkpoint and its log are restored together from an old copy, or copied to another machine, they look like a
restart: nothing in them is wrong. But the servers have seen commits that the log does not know.

This is a safety net below the rules, not one of them: it works only as long as a server remembers. It relies on log
positions, batch numbers and producers, never on a clock, so it cannot refuse the log of the runs that left the traces.
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
        lane: The field among these that the run reuses for later transactions, if any.
    """

    token: Token
    committed: tuple[tuple[str, Scalar], ...] = ()
    batch: int | None = None
    lane: tuple[str, Scalar] | None = None


def not_in_log(view: LogView, traces: Sequence[Trace], listed_at: int | None = None) -> str:
    """Returns what the traces show and the log should contain but does not; empty if nothing is missing.

    The log must have been read to its end after the traces were listed. If it is the log of the runs that left them,
    everything they show was claimed and decided in it first: a run writes only after its claim has landed, and commits
    only what is decided. The log has forgotten what is below its floor, so nothing down there counts.

    Args:
        view: The log.
        traces: The traces that a server reported.
        listed_at: Where the log ended when the traces were listed; None if nothing has been appended since.
    """
    return _unknown_run(view, traces) or _unknown_commit(view, traces, view.end if listed_at is None else listed_at)


def _unknown_run(view: LogView, traces: Sequence[Trace]) -> str:
    """Names a run that committed but whose claim is not in the log, because the log was truncated or copied."""
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
    """Names a committed transaction that no decision names, although its decision cannot have been forgotten."""
    named = {handle.transaction for decision in view.decisions for handle in decision.handles}
    # A trace shows the last transaction that a lane had at the time of the listing. If the lane has been reused since,
    # the log may contain only the later transaction and have forgotten the one in the trace.
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
