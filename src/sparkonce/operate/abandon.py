"""Ends what a query has left open, whose checkpoint is gone: nobody knows what was decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial

from sparkonce.driver.outage import Outage
from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import FINAL, Finished, Handle
from sparkonce.sink import Owner, SinkCommitter, TwoPhaseCommitSink
from sparkonce.sinks._shared.orphans import Orphan, token_in


def abort_all(
    query: str, sink: TwoPhaseCommitSink, listed: Sequence[Orphan], *, patience_s: float
) -> Mapping[str, int]:
    """Aborts what was listed of a query, without its log. Rows that were decided, and not committed yet, are lost.

    Args:
        query: The short form of the query's id.
        sink: One of its sinks.
        listed: What is open on its system: no others are aborted.
        patience_s: How long a server that does not answer is asked again, in seconds.

    Returns:
        How many transactions ended how.

    Raises:
        UnknownOutcomeError: if some are not surely aborted.
        SparkonceError: if the system refuses, or does not answer.
    """
    facts = sink.preflight(query, None)
    tokens = sorted({token_in(one.run) for one in listed if one.query == query})
    with closing(sink.committer()) as committer:
        found = committer.list_lingering([Owner(query=query, token=token, facts=facts) for token in tokens])
        handles = [handle for handle in found if any(one.is_of(handle) for one in listed)]
        doing = f"what is open in sink {sink.name!r} is to be aborted"
        answers = Outage(patience_s).retry(partial(_aborted, committer, handles), doing)
    return Counter(answer.outcome.value for answer in answers)


def _aborted(committer: SinkCommitter, handles: Sequence[Handle]) -> Sequence[Finished]:
    answers = committer.abort(handles)
    if waiting := [one for one in answers if one.outcome not in FINAL]:
        raise UnknownOutcomeError(
            f"{len(waiting)} of {len(handles)} transactions are not surely aborted: {waiting[0].reason}",
            next_step=waiting[0].next_step or "Run the command again.",
        )
    return answers
