"""A query's own transactions, as the broker lists them."""

from __future__ import annotations

from eventually import eventually
from sparkonce.protocol.ownership import TransactionalId
from sparkonce.testing.kafka import Transaction, list_transactions

ENDING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""Those that are decided and whose markers are not all written."""


def transactions_of(bootstrap: str, query: str, *states: str) -> dict[str, Transaction]:
    """Lists those of a query, known by the short form of its id, in one of these states, or in any."""
    found = list_transactions(bootstrap, states=states)
    parsed = {name: TransactionalId.parse(name) for name in found}
    return {name: found[name] for name, one in parsed.items() if one is not None and one.query == query}


def await_markers(bootstrap: str, query: str = "") -> None:
    """Waits until the broker has written the markers of all that it has answered, to one query or to any.

    It answers a commit before it writes them, and readers see nothing without them. A lone broker of Kafka 4.3 or 4.4
    that crashes in between may forget them (KAFKA-20734): who kills one waits for them first.
    """

    def ending() -> dict[str, Transaction]:
        return transactions_of(bootstrap, query, *ENDING) if query else list_transactions(bootstrap, states=ENDING)

    eventually(lambda: not ending(), "the broker has written its markers")
