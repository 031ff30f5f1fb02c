"""What a server remembers of a query's runs, held against the log: a log that is older than what was written shows.

A checkpoint and its log that are restored together from an old copy, or copied to another machine, look like a
restart: nothing in them is wrong. But the server has seen commits that they know nothing of.

It is a net below the rules, not one of them: it holds as long as the server remembers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkonce.protocol.handles import Scalar
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import LogView

CLOCKS_DIFFER_MS = 300_000
"""By how much clocks may differ, in milliseconds: five minutes, as for Kerberos."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a run that has committed something has left on a server.

    Attributes:
        token: The run's.
        committed: The fields of a committed transaction, as its handle has them; empty if the trace only says that the
            run has committed.
        lane: The one of these fields that the run uses again for later transactions, if there is one.
        begun_ms: When the transaction was begun, milliseconds since the epoch by the server's clock.
    """

    token: Token
    committed: tuple[tuple[str, Scalar], ...] = ()
    lane: tuple[str, Scalar] | None = None
    begun_ms: int = 0


def not_in_log(view: LogView, traces: Sequence[Trace], listed_at: int | None = None) -> str:
    """What the traces show that the log does not know and ought to; empty if there is nothing.

    Args:
        view: The log.
        traces: What a server remembers.
        listed_at: Where the log ended when the traces were asked for; None if nothing was appended to it since.

    The log must have been read after the traces, without a change of its floor since. Then whatever they show was
    claimed and decided in it before, if it is the log of those runs: a run writes only after its claim has landed, and
    commits only what is decided.

    - A run that has committed, and whose claim is not in the log: the log was longer once, or has been copied. What the
      log may have forgotten, because it lies below its floor or is older than all the runs it keeps, does not count.
    - A commit that no decision names. Decisions below the floor are forgotten; but what they named was begun before
      everything that is named above it, and is not on a lane that is named above it. Of lanes, only those count that
      were named when the traces were asked for: a trace is the last transaction of its lane, and may be one that is
      forgotten, if the lane was used again since. When what is named was begun, the server says of those of which it
      has the trace, and the executor's clock of all. The later counts: an executor's clock may be hours behind. Where
      all that is named is one batch that a floor carries, and the server has no trace of it, nobody knows.
    """
    return _unknown_run(view, traces) or _unknown_commit(view, traces, view.end if listed_at is None else listed_at)


def _unknown_run(view: LogView, traces: Sequence[Trace]) -> str:
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
    handles = [handle for decision in view.decisions for handle in decision.handles if handle.transaction]
    named = {handle.transaction for handle in handles}
    lanes = {
        field
        for decision in view.decisions
        if decision.position < listed_at
        for handle in decision.handles
        for field in handle.transaction
    }
    opened_ms = [handle.opened_ms for handle in handles]
    begun_ms = [trace.begun_ms for trace in traces if trace.committed in named]
    # The floor of a run that found too many claims names one batch alone, and that may not be committed yet, also not
    # once it is amended or void.
    carried = view.floor.newest
    executors_alone = not begun_ms and carried is not None and [one.batch for one in view.decisions] == [carried.batch]
    last_ms = None if executors_alone else max((*opened_ms, *begun_ms), default=None)
    known = {run.token for run in view.runs}

    def is_strange(trace: Trace) -> bool:
        if not trace.committed or trace.committed in named or trace.token not in known:
            return False
        if trace.token.position >= view.floor.position or trace.lane in lanes:
            return True
        return last_ms is not None and trace.begun_ms > last_ms + CLOCKS_DIFFER_MS

    strange = [trace for trace in traces if is_strange(trace)]
    if not strange:
        return ""
    example = " ".join(f"{field}={value}" for field, value in max(strange, key=lambda one: one.begun_ms).committed)
    return f"what is committed and no decision in it names, in transactions: {len(strange)}, the last one {example}"
