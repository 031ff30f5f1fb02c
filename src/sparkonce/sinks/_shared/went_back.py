"""The error of a server that does not have, at a new connection, the newest batch that was finished there."""

from __future__ import annotations

from sparkonce.errors import StaleServerError
from sparkonce.protocol.ownership import TransactionName


def went_back(sink: str, transaction: str) -> StaleServerError:
    """Returns the error of a run whose server went back to an older state under it, without one of its last commits."""
    name = TransactionName.parse(transaction)
    batches = [] if name is None else [name.batch]
    return StaleServerError(
        f"Sink {sink!r} has connected anew, and its server does not have {transaction} any more, which was committed "
        f"there with batch {batches}: it went back to an older state (a fail-over to a replica that lagged, a restored "
        "backup).",
        next_step="Bring the newer state back, if there is one, and start again: the start says which batches are "
        "missing, and how to go on without them.",
        missing={sink: batches},
    )
