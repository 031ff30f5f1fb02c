"""Turns a stop into the error that the user sees, with the next step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sparkonce import errors
from sparkonce.protocol import effects as do
from sparkonce.protocol.handles import Finished, Outcome

_ERRORS: dict[do.StopReason, tuple[type[errors.SparkonceError], str]] = {
    do.StopReason.STALE: (
        errors.StaleBatchError,
        "see which driver runs on this checkpoint, or restore the checkpoint and its sparkonce folder from one copy "
        "that is no older than the last committed batch; an older copy writes its later batches a second time.",
    ),
    do.StopReason.MISMATCH: (
        errors.CheckpointMismatchError,
        "restore the checkpoint together with its sparkonce folder, no older than the last committed batch, or "
        f"{errors.ANEW}.",
    ),
    do.StopReason.SUPERSEDED: (errors.SupersededError, "nothing, if the newer run is the one that should run."),
    do.StopReason.PREPARE_FAILED: (errors.PrepareError, "remove the cause and start the query again; no row is lost."),
    do.StopReason.TOO_OLD: (
        errors.TransactionTooOldError,
        "let transactions live longer than the batch takes to be written (Kafka: transaction.timeout.ms, and the "
        "broker's transaction.max.timeout.ms; Redis: staging_ttl_s; S3: the bucket's lifecycle rules), or give it "
        "more cores, and start the query again. Smaller batches (maxOffsetsPerTrigger) help from the next batch on: "
        "Spark repeats this one with the offsets that it has recorded. To split it, see the documentation, Operations.",
    ),
    do.StopReason.UNKNOWN: (
        errors.UnknownOutcomeError,
        "check whether the servers can be reached, then start the query again: it checks the outcome first.",
    ),
    do.StopReason.LOST: (
        errors.TransactionLostError,
        "the plan is not deterministic or its input is gone: compare the sink with the slots listed, repair it "
        f"manually, and {errors.ANEW}.",
    ),
    do.StopReason.UNWRITABLE: (
        errors.LogError,
        "make the checkpoint's disk writable, or give keys that its store accepts, and start the query again.",
    ),
    do.StopReason.LOG_VIOLATION: (errors.LogError, "restore the log together with the checkpoint from one copy."),
    do.StopReason.STOPPED: (errors.SupersededError, "start the query again: a new run can continue."),
}


_SPREAD_OTHERWISE = (
    "the batch had a different number of slots when it was decided: start the query with that number (partitions of "
    "its source, spark.sql.shuffle.partitions, cores, spark.sql.adaptive.enabled) until this batch is committed. A "
    "plan with coalesce() may never produce them again: see the documentation, Operations."
)
"""The next step if a replay returns exactly the same rows in different slots. Nothing is permanently lost."""


_DELETED = (
    "nothing writes them again: compare the sink with the slots listed, write what is missing manually, and "
    f"{errors.ANEW}. Have the server keep rows for longer than transactions stay open."
)

_MOVED = (
    "if the checkpoint was moved, and nothing uses the old one, confirm this once: ExactlyOnce(…, "
    "checkpoint_moved=True). If this is a copy, start from the one that was used last."
)

_ADVISED = frozenset({do.StopReason.PREPARE_FAILED, do.StopReason.UNKNOWN, do.StopReason.TOO_OLD})
"""The reasons for which a system's own advice replaces the next step."""


class Failure:
    """The failure of the last effect.

    Attributes:
        cause: The error; None if there was none.
        advice: The next step that the failed system recommends; empty if it recommends none.
    """

    def __init__(self) -> None:
        self.cause: BaseException | None = None
        self.advice = ""

    def clear(self) -> None:
        """Forgets the failure of an earlier effect."""
        self.cause, self.advice = None, ""

    def note(self, error: BaseException) -> str:
        """Records an error with its advice, and returns its message."""
        self.cause, self.advice = error, then_start_again(error)
        return error.message if isinstance(error, errors.SparkonceError) else first_line(error)


def first_line(error: BaseException) -> str:
    """Returns an error's class and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def then_start_again(error: BaseException) -> str:
    """Returns the next step after a failed write; empty if the error has none."""
    step = error.next_step if isinstance(error, errors.SparkonceError) else ""
    return step and f"{step} Then start the query again; no row is lost."


def advice_of(waiting: Sequence[Finished]) -> str:
    """Returns the next step for outcomes that are not final; empty if only waiting helps."""
    if steps := dict.fromkeys(answer.next_step for answer in waiting if answer.next_step):
        return f"{' '.join(steps)} Then start the query again: it checks the outcome first."
    if any(answer.outcome is Outcome.UNKNOWN for answer in waiting):
        return "do what the answer asks for, then start the query again: it checks the outcome first."
    return ""


def taken_away(reasons: Iterable[str]) -> str:
    """Returns the next step for transactions that are lost repeatedly, but not because they time out."""
    return f"find out what removes them, then start the query again: {'; '.join(reasons)}"


def stop_error(stop: do.Stop, batch: int, advice: str = "") -> errors.SparkonceError:
    """Returns the error for a stop at a batch."""
    kind, next_step = _ERRORS[stop.reason]
    if advice and stop.reason in _ADVISED:
        next_step = advice
    details: dict[str, Any] = {"batch": batch, **dict(stop.details)}
    if details.pop("moved", False):
        next_step = _MOVED
    if stop.reason is do.StopReason.LOST:
        message = (
            f"{stop.message}. Lost: {details['lost']}; differing: {details['differing']}; input: {details['offsets']}"
        )
        next_step = _SPREAD_OTHERWISE if details["same_rows"] else _DELETED if details.get("deleted") else next_step
        return kind(message, next_step=next_step, **details)
    return kind(stop.message, next_step=next_step, **details)
