"""What the user's function is given, what it may raise, and what its author declares about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

from sparkonce.sinks.write_ahead.rows import read

if TYPE_CHECKING:
    import pyarrow as pa


class Applies(str, Enum):
    """What happens in the target when the function is called a second time for the same token.

    It is called again whenever nobody can say whether the first call did its work: the driver was killed in it, its
    connection broke, it took too long.
    """

    TRANSACTIONAL = "transactional"
    """Nothing: it keeps ``token.id`` in the target in the same transaction as the rows, and returns `SKIPPED` when it
    finds it there. Exactly-once."""
    IDEMPOTENT = "idempotent"
    """The same rows lead to the same state: upserts by key, or an API that knows ``token.id`` as an idempotency key.
    Effectively once, with what `CONDITIONS` says."""
    NEITHER = "neither"
    """The rows are there twice. At-least-once; the log names each slot that this may have happened to."""


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
    """Names, for ever and alone, the rows of one call. The same rows have the same token however often they are given.

    Attributes:
        id: Its text: at most 200 bytes of ASCII, safe in a URL, a header or a key. Keep this in the target.
        query: The short form of the query's id.
        batch: Spark's batch id.
        slots: The slots whose rows these are, ascending; one, unless the sink is ``per="batch"``.
        rows: How many rows there are.
    """

    id: str
    query: str
    batch: int
    slots: tuple[int, ...]
    rows: int

    @property
    def slot(self) -> int:
        """The slot, or the lowest of them."""
        return self.slots[0]


class Skipped(Enum):
    """What the user's function returns if it leaves rows unread on purpose."""

    SKIPPED = "skipped"


SKIPPED: Final = Skipped.SKIPPED
"""Returned by the user's function: what it has not read need not be read, for example because the target has it."""

Apply = Callable[["pa.RecordBatchReader", ApplyToken], object]
"""Brings rows into the target. It has done so when it returns; of what it returns only `SKIPPED` has a meaning.

The rows come as a ``pyarrow.RecordBatchReader``, once: iterate over it for one record batch at a time, in bounded
memory, or take all with ``read_all()`` or ``read_pandas()``. If it returns before it has taken them all, and does not
return `SKIPPED`, the query stops.
"""

IsApplied = Callable[[ApplyToken], bool]
"""Whether the target holds this token's rows. Asked before a repeat, so that the rows need not be read again."""


class RetryLaterError(Exception):
    """Raised by the user's function: not now. Any other exception means the same, without saying when.

    Args:
        message: Why, for the operator.
        after_s: How long not to call it again for these rows.
    """

    def __init__(self, message: str = "", *, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class RefusedError(Exception):
    """Raised by the user's function: the target does not take these rows, and never will as things are.

    The query stops at once with the reason. The rows are kept; when the cause is removed and the query started again,
    they are given to the function again.
    """


class UnreadRowsError(Exception):
    """The user's function returned before it had taken all of its rows, and did not say why."""


def give(apply: Apply, files: Sequence[BinaryIO], token: ApplyToken) -> None:
    """Calls the user's function with the rows of checked files.

    Raises:
        UnreadRowsError: if it has left some of them, and did not return `SKIPPED`.
    """
    taken: list[int] = []
    said = apply(read(files, taken), token)
    if sum(taken) < token.rows and said is not SKIPPED:
        raise UnreadRowsError(
            f"the function returned when it had read {sum(taken)} of the {token.rows} rows of {token.id}: read them "
            "all, or return sparkonce.write_ahead.SKIPPED if the target has the others, or is to do without them"
        )
