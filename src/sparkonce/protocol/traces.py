"""What a server remembers of a query's runs, held against the log: a log that is older than what was written shows.

A checkpoint and its log that are restored together from an old copy, or copied to another machine, look like a
restart: nothing in them is wrong. But the server has seen runs, or commits, that they know nothing of.

It is a net below the rules, not one of them. It holds as long as the server remembers; and once the log has forgotten
old decisions, a copy passes if all of its lanes were taken by writers that lost, while newer ones committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkonce.protocol.handles import Scalar
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Something a run has left on a server.

    Attributes:
        token: The run's.
        committed: The fields of a transaction that is committed, as its handle has them; empty if the trace only says
            that the run was there.
        lane: The one of these fields that the run uses again for later transactions, if there is one.
        begun: Orders committed transactions by their begin, by the server's clock or count.
    """

    token: Token
    committed: tuple[tuple[str, Scalar], ...] = ()
    lane: tuple[str, Scalar] | None = None
    begun: int = 0


def ahead_of(view: LogView, traces: Sequence[Trace]) -> str:
    """How the traces show that the log is not the newest there is; empty if they do not.

    The log must have been read after the traces. Then whatever they show was claimed or decided in it before, if it
    is the log of those runs: a run writes only after its claim has landed, and commits only what is decided.

    - A run that claimed a position which this log has not reached: the log was longer once, or elsewhere.
    - A commit of the log's newest run that no decision names. (Older runs need no look: that run's claim ended them.)
      Decisions below the floor are forgotten, but what they named was begun before everything that is named above it,
      and is not on a lane that is named above it.
    """
    unknown = [trace.token for trace in traces if trace.token.position >= view.end]
    if unknown:
        furthest = max(unknown)
        return (
            f"run {furthest.position}-{furthest.nonce} has claimed position {furthest.position}, and this log ends at "
            f"{view.end}"
        )
    newest = view.newest_run
    if newest is None:
        return ""
    named = {handle.transaction for decision in view.decisions for handle in decision.handles}
    commits = [trace for trace in traces if trace.committed and trace.token == newest.token]
    strange = [trace for trace in commits if trace.committed not in named]
    if newest.token.position < view.floor.position:
        lanes = {field for fields in named for field in fields}
        last = max((trace.begun for trace in commits if trace.committed in named), default=None)
        strange = [one for one in strange if one.lane in lanes or (last is not None and one.begun > last)]
    if not strange:
        return ""
    example = " ".join(f"{field}={value}" for field, value in max(strange, key=lambda trace: trace.begun).committed)
    return f"{len(strange)} transactions are committed that no decision in it names, the last one {example}"
