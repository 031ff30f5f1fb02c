"""A query's own transactions, as the broker lists them."""

from __future__ import annotations

import time

from eventually import eventually
from sparkonce.protocol.ownership import TransactionalId
from sparkonce_lab.kafka import Transaction, list_transactions

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


def await_aborted(bootstrap: str, query: str) -> None:
    """Waits until the broker has aborted all of a query's transactions that are past their timeout.

    Raises:
        AssertionError: if it has not in time; says what is left, and in which state.
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
