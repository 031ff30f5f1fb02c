"""All errors that sparkonce raises, in one tree.

::

    SparkonceError
    ├── ConfigurationError         a setting is missing, unknown or contradicts another
    │   └── SchemaError            a column is missing or has a type that the sink rejects
    ├── PreflightError             a server's setting, limit or permission does not allow the guarantee
    ├── RegistryError              the schema registry rejected a request, or did not respond
    ├── LogError                   the decision log cannot be trusted or used
    │   ├── CorruptRecordError     a record's checksum or shape is wrong
    │   ├── NewerFormatError       a record was written by a newer library
    │   └── StaleLogError          a server remembers more than the log: the log is an old copy, or was used elsewhere
    ├── StaleServerError           a server lost committed batches: it was restored to an older state
    ├── RefusedBatchError          the log does not allow this batch to run
    │   ├── StaleBatchError        a later batch is decided: another driver is ahead, or the checkpoint is an old copy
    │   └── CheckpointMismatchError  the decided batch had other input: the checkpoint was copied or recreated
    ├── SupersededError            a newer run has claimed the query; this one stops
    ├── PrepareError               a slot could not prepare; nothing became visible
    │   ├── OutageError            a system was unreachable or full while a batch was being written
    │   └── TransactionTooOldError the batch took longer than its transactions are allowed to live
    ├── UnknownOutcomeError        a request's outcome is unknown after the deadline; nothing was undone
    ├── TransactionLostError       decided rows are lost, and the replay returned different rows
    ├── FilesGoneError             files that a reader needs were deleted
    └── QueryFailedError           a query has failed: raised by `await_end` if it does not end the process

Every error can be pickled. Its message names the setting and the value, and ``next_step`` tells operators what to do.

`one_line` formats a message from a server or library for an error or a log.
"""

from __future__ import annotations

import re
from typing import Any

_WORD = re.compile(r"(?!pip |sparkonce |librdkafka )[a-z]+(?:[ ,]|$)")
"""The first word of a sentence, unless it is a command or a name."""

ANEW = (
    "start a new query with a new checkpoint. It writes all of its input again, also to sinks that have it, unless it "
    "starts after the offsets of this one's last batch, which sparkonce checkpoint show names"
)
"""The end of a next step, for when a query can't continue with its checkpoint."""


class SparkonceError(Exception):
    """The base of all errors that sparkonce raises.

    Args:
        message: What happened, with the setting and its value if it is about one.
        next_step: The operator's next step.
        details: Plain values for programs: batch, phase, handle, outcome.
    """

    _OF_A_START = False
    """True for errors at start, whose messages are capitalized even if a sink's author did not capitalize them."""

    def __init__(self, message: str, *, next_step: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.details = details

    def __str__(self) -> str:
        return " ".join(self.lines())

    def lines(self) -> list[str]:
        """Returns the lines to show: the message, then the next step if there is one."""
        message = with_capital(self.message, self.details.get("setting")) if self._OF_A_START else self.message
        return [_stopped(message), *([f"Next: {_stopped(with_capital(self.next_step))}"] if self.next_step else [])]

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.next_step, self.details))


def with_capital(text: str, setting: object = None) -> str:
    """Capitalizes the message, unless it begins with the setting's name."""
    is_name = re.split("[ ,]", text, maxsplit=1)[0] == setting
    return text[0].upper() + text[1:] if _WORD.match(text) and not is_name else text


def _stopped(text: str) -> str:
    """Returns the message with a period at its end."""
    text = text.rstrip()
    return text if text.endswith((".", "!", "?", "…", ":")) or not text else f"{text}."


def _rebuild(kind: type[SparkonceError], message: str, next_step: str, details: dict[str, Any]) -> SparkonceError:
    return kind(message, next_step=next_step, **details)


class ConfigurationError(SparkonceError):
    """A setting is missing, unknown, or contradicts another."""

    _OF_A_START = True


class SchemaError(ConfigurationError):
    """A column is missing or has a type that the sink rejects."""


class PreflightError(SparkonceError):
    """A server's setting, limit or permission does not allow the required guarantee."""

    _OF_A_START = True


class RegistryError(SparkonceError):
    """The schema registry rejected the request, or did not respond.

    If the registry responded, ``details["status"]`` is the HTTP status, and ``details["code"]`` is the registry's own
    code, such as 40403.
    """


class LogError(SparkonceError):
    """The decision log cannot be trusted or used."""


class CorruptRecordError(LogError):
    """A record of the log has a wrong checksum or shape."""


class NewerFormatError(LogError):
    """A record of the log was written by a newer version of the library."""


class StaleLogError(LogError):
    """A server remembers commits that the log lacks: the log is an old copy, or another copy has been used."""


class StaleServerError(SparkonceError):
    """A server lost batches that were committed there: it was restored to an older state.

    ``details["missing"]`` lists the batches that are known to be missing, by sink.
    """


class RefusedBatchError(SparkonceError):
    """The log does not allow this batch to run."""


class StaleBatchError(RefusedBatchError):
    """A later batch is already decided: another driver is ahead, or the checkpoint is an old copy."""


class CheckpointMismatchError(RefusedBatchError):
    """The log belongs to another query, or the batch was decided with other input offsets."""


class SupersededError(SparkonceError):
    """A newer run has claimed the query. This run has undone only its own transactions, and stops."""


class PrepareError(SparkonceError):
    """A slot could not prepare. Every prepared slot is aborted and nothing became visible."""


class OutageError(PrepareError):
    """A system was unreachable or full while a batch was being written. A retry may succeed.

    If a writer raises this error, the driver waits and writes the batch again, as long as `outage_patience_s` permits.
    """


class TransactionTooOldError(PrepareError):
    """The batch took longer than its transactions may live, so committing it would lose rows."""


class UnknownOutcomeError(SparkonceError):
    """A request's outcome is still unknown after the deadline. Nothing was undone. The next start checks it again."""


class TransactionLostError(SparkonceError):
    """Decided rows are lost, and rerunning the batch did not return the same rows.

    ``details["lost"]`` lists each lost (sink, slot) with its row count, and ``details["offsets"]`` the batch's input
    offsets. If ``details["same_rows"]`` is True, the replay returned the same rows in different slots, and a start with
    the original number of slots heals the batch.
    """


class FilesGoneError(SparkonceError):
    """Files of committed batches were deleted. ``details["gone"]`` lists them, relative to the sink's path."""


class QueryFailedError(SparkonceError):
    """A query has failed with any error. The message and the next step leave out Spark's stack traces.

    Attributes:
        spark_is_gone: True if the query failed because Spark itself has ended.
    """

    spark_is_gone = False

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that a notebook shows instead of a traceback."""
        return self.lines()


MOST_CHARACTERS = 1000


def one_line(said: object) -> str:
    """Returns the text on one line, without control characters, truncated to a maximum length.

    A server may quote rows, and a line break or control characters in them could forge log lines.
    """
    shown = "".join(one if one.isprintable() else " " for one in str(said))
    line = " ".join(shown.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"
