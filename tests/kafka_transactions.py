"""A query's own transactions, as the broker lists them."""

from __future__ import annotations

import time

from eventually import eventually
from sparkonce.protocol.ownership import TransactionalId
from sparkonce_lab.kafka import Transaction, list_transactions

ENDING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""The states of transactions that are decided, but whose markers are not all written yet."""


def transactions_of(bootstrap: str, query: str, *states: str) -> dict[str, Transaction]:
    """Lists the transactions of a query, given the short form of its id.

    Optionally only those in one of these states.
    """
    found = list_transactions(bootstrap, states=states)
    parsed = {name: TransactionalId.parse(name) for name in found}
    return {name: found[name] for name, one in parsed.items() if one is not None and one.query == query}


def await_markers(bootstrap: str, query: str = "") -> None:
    """Waits until the broker has written all transaction markers, for one query or for all queries.

    The broker acknowledges a commit before it writes the markers, and readers see no rows without them. A single-node
    Kafka 4.3 or 4.4 cluster that crashes in between may lose them (KAFKA-20734), so a test that kills the broker waits
    for them first.
    """

    def ending() -> dict[str, Transaction]:
        return transactions_of(bootstrap, query, *ENDING) if query else list_transactions(bootstrap, states=ENDING)

    eventually(lambda: not ending(), "the broker has written its markers")


def await_aborted(bootstrap: str, query: str) -> None:
    """Waits until the broker has aborted all transactions of a query that are past their timeout.

    Raises:
        AssertionError: If the time is up. The message lists the remaining transactions and their states.
    """
    left: dict[str, Transaction] = {}

    def none_is_left() -> bool:
        left.clear()
        left.update(transactions_of(bootstrap, query, "Ongoing", *ENDING))
        return not left

    try:
        eventually(none_is_left, "the broker has aborted what is past its timeout")
    except AssertionError as error:
        raise AssertionError(f"{error}; left at {time.time():.3f}: {list(left.values())}") from None
