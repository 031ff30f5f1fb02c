"""The user's function: what it gets, returns and raises, and what its author declares about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

from sparkonce.sinks.write_ahead.rows import read

if TYPE_CHECKING:
    import pyarrow as pa


class Applies(str, Enum):
    """The effect in the target of a second call of the function for the same token.

    The function is called again whenever nobody can say whether the first call did its work: the driver was killed in
    it, its connection broke, it took too long.
    """

    TRANSACTIONAL = "transactional"
    """Changes nothing: the function keeps ``token.id`` in the target with the rows, and returns `SKIPPED` if it
    finds it there. Exactly-once."""
    IDEMPOTENT = "idempotent"
    """Leads to the same state: upserts by key, or an API that takes ``token.id`` as an idempotency key. Effectively
    once, under the conditions in `CONDITIONS`."""
    NEITHER = "neither"
    """The rows twice. At-least-once; the log names each slot whose rows may be there twice."""


CONDITIONS = {
    Applies.TRANSACTIONAL: (
        "the function keeps token.id in the target in the transaction that writes the rows, and writes nothing when it "
        "is there already; the target keeps it as long as the query may be away"
    ),
    Applies.IDEMPOTENT: (
        "effectively once: the function leaves the target as it is when it is called again with the same token and "
        "rows; a call may come again after later batches, and until the replay has caught up readers may see older "
        "values"
    ),
    Applies.NEITHER: (
        "at least once: a slot whose function was interrupted is applied again; the log names it as 'applied again'"
    ),
}

Per = Literal["slot", "batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyToken:
    """The name of the rows of one call, unique forever. The same rows have the same token in each call.

    Attributes:
        id: Its text: at most 200 bytes of ASCII, safe in a URL, a header or a key. Keep it in the target.
        query: The short form of the query's id.
        batch: Spark's batch id.
        slots: The slots of the rows, ascending; one, unless the sink is ``per="batch"``.
        rows: The number of rows.
    """

    id: str
    query: str
    batch: int
    slots: tuple[int, ...]
    rows: int

    @property
    def slot(self) -> int:
        """The slot, or the lowest of several."""
        return self.slots[0]


class Skipped(Enum):
    """The answer of a user's function that leaves rows unread on purpose."""

    SKIPPED = "skipped"


SKIPPED: Final = Skipped.SKIPPED
"""Returned by the user's function: the rest need not be read, for example because the target has the rows."""

Apply = Callable[["pa.RecordBatchReader", ApplyToken], object]
"""Brings rows into the target before it returns. Of the values it may return only `SKIPPED` has a meaning.

The rows come as a ``pyarrow.RecordBatchReader``, once: iterate over it for one record batch at a time, in bounded
memory, or take all with ``read_all()`` or ``read_pandas()``. The query stops if the function returns before it has
taken all rows, and does not return `SKIPPED`.
"""

IsApplied = Callable[[ApplyToken], bool]
"""Tells whether the target holds this token's rows. Asked before a repeat, so that they need not be read again."""


class RetryLaterError(Exception):
    """Raised by the user's function: not now. Any other exception means the same, without a time.

    Args:
        message: The reason, for the operator.
        after_s: How long not to call the function again for these rows, in seconds.
    """

    def __init__(self, message: str = "", *, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class RefusedError(Exception):
    """Raised by the user's function: the target does not take these rows, and never will as things are.

    The query stops at once with the reason. The rows are kept: once the cause is removed and the query started again,
    the function gets them again.
    """


class UnreadRowsError(Exception):
    """Raised if the user's function returned before it had taken all of its rows, without `SKIPPED`."""


def give(apply: Apply, files: Sequence[BinaryIO], token: ApplyToken) -> None:
    """Calls the user's function with the rows of checked files.

    Raises:
        UnreadRowsError: if it has left some of them, and did not return `SKIPPED`.
    """
    taken: list[int] = []
    returned = apply(read(files, taken), token)
    if sum(taken) < token.rows and returned is not SKIPPED:
        raise UnreadRowsError(
            f"The function returned when it had read {sum(taken)} of the {token.rows} rows of {token.id}: read them "
            "all, or return sparkonce.write_ahead.SKIPPED if the target has the others, or is to do without them."
        )
