"""Lists of requests to which a server's model and the real server must respond alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from sparkonce_rabbitmq.sinks.messages import frames

ROW = b"%06d"


def stream_answers(connect: Callable[[], Any], stream: str) -> list[object]:
    """The responses of a stream to publishers with two names, one of which returns on a second connection.

    Args:
        connect: Opens a connection to the leader, like `sparkonce_rabbitmq.sinks.connection.PublisherConnection`.
        stream: The stream.
    """
    first, again, other = connect(), connect(), connect()
    first.declare(stream, "one")
    again.declare(stream, "one")
    other.declare(stream, "two")

    def publish(connection: Any, first_id: int, *rows: int) -> None:
        messages = pa.array([ROW % row for row in rows], pa.large_binary())
        for frame in frames(messages, first_id, 1_000):
            connection.publish(frame)

    answers: list[object] = [first.sequence(stream, "one")]
    publish(first, 5, 0, 1, 2)
    answers.append(again.sequence(stream, "one"))
    publish(again, 6, 1, 2, 3)  # two of them are repeated
    publish(again, 3, 0)  # confirmed, but dropped
    answers += [first.sequence(stream, "one"), first.sequence(stream, "two")]
    publish(other, 1, 4)
    answers += [first.sequence(stream, "one"), first.sequence(stream, "two")]
    for connection in (first, again, other):
        connection.close()
    return answers


def transaction_answers(writer: Any, status: Callable[[str], str | None]) -> list[object]:
    """Pravega's responses to commits and aborts that are sent once, twice and too late.

    Args:
        writer: A writer of transactions, as in the Java client.
        status: Queries the status of one.
    """

    def tried(ask: Callable[[], object]) -> str:
        try:
            ask()
        except Exception as error:  # noqa: BLE001 - the error is Java's or the model's
            return "refused" if "TxnFailed" in str(error) else repr(error)
        return "done"

    answers: list[object] = []
    for calls in (("commit", "commit"), ("commit", "abort"), ("abort", "commit"), ("abort", "abort")):
        begun = writer.beginTxn()
        number = str(begun.getTxnId().toString())
        answers.append(status(number))
        for call in calls:
            answers.append(tried(getattr(writer.getTxn(_like(begun)), call)))
            answers.append(status(number))
    return answers


def _like(transaction: Any) -> Any:
    found = transaction.getTxnId()
    return found if hasattr(found, "_target_id") else str(found.toString())


STREAM: Sequence[object] = (0, 7, 8, 0, 8, 1)
TRANSACTIONS: Sequence[object] = (
    *("OPEN", "done", "COMMITTED", "refused", "COMMITTED"),
    *("OPEN", "done", "COMMITTED", "done", "COMMITTED"),
    *("OPEN", "done", "ABORTED", "refused", "ABORTED"),
    *("OPEN", "done", "ABORTED", "done", "ABORTED"),
)
