"""A run, as sinks see it, and the memory that the log has of a sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparkonce.protocol.ownership import Token

Facts = Mapping[str, str]
"""The log's memory of a sink from run to run, for example the cluster's id and the prefix of its ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A run, as a sink sees it: its transactions carry its query and its token.

    Attributes:
        query: The short form of the query's id, see `sparkonce.protocol.ownership.short_query`.
        token: The run's token.
        facts: The facts that `TwoPhaseCommitSink.preflight` returned in that run.
        generation: Incremented whenever a request to end this run's transactions went unanswered. Such a request may
            still arrive, so a sink that uses the names of its transactions again begins with new names then.
    """

    query: str
    token: Token
    facts: Facts = field(default_factory=dict)
    generation: int = 0


Runs = Mapping[tuple[str, str], frozenset[Token]]
"""Maps (prefix, query) to the tokens of the runs that wrote under them."""


def claimed_by(owners: Sequence[Owner]) -> Runs:
    """Returns these runs by prefix and query, without those that wrote no transactions: their facts have no prefix."""
    found: dict[tuple[str, str], frozenset[Token]] = {}
    for owner in owners:
        if prefix := owner.facts.get("prefix"):
            whose = (prefix, owner.query)
            found[whose] = found.get(whose, frozenset()) | {owner.token}
    return found
