"""All errors that sparkonce raises, in one tree.

::

    SparkonceError
    ├── ConfigurationError         a setting is missing, unknown or contradicts another
    │   └── SchemaError            a column is missing or has a type that the sink refuses
    ├── PreflightError             a server's setting, limit or permission does not allow the guarantee
    ├── RegistryError              the schema registry refused, or gave no answer
    ├── LogError                   the decision log cannot be trusted or used
    │   ├── CorruptRecordError     a record's checksum or shape is wrong
    │   ├── NewerFormatError       a record was written by a newer library
    │   └── StaleLogError          a server remembers more than the log: the log is an old copy, or ran elsewhere
    ├── StaleServerError           a server lost batches that were committed there: it went back
    ├── RefusedBatchError          the log says that this batch must not run
    │   ├── StaleBatchError        a later batch is decided: another driver is ahead, or the checkpoint is an old copy
    │   └── CheckpointMismatchError  the decided batch had other input: the checkpoint was copied or made again
    ├── SupersededError            a newer run has claimed the query; this one stops
    ├── PrepareError               a slot could not prepare; nothing became visible
    │   ├── OutageError            a system could not be reached, or had no room, while a batch was written
    │   └── TransactionTooOldError the batch took longer than its transactions are allowed to live
    ├── UnknownOutcomeError        a request's outcome is unknown after the deadline; nothing was undone
    ├── TransactionLostError       decided rows are gone, and the replay gave other rows
    ├── FilesGoneError             files that a reader asks for were deleted
    └── QueryFailedError           a query has failed: what `await_end` raises where it does not end the process

Every error can be pickled. Its message names the setting and the value, and ``next_step`` what the operator can do.


Prepares the words of a server or library for a message or a log.
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
"""The end of a next step, where a query can't go on with its checkpoint."""


class SparkonceError(Exception):
    """The base of every error that sparkonce raises.

    Args:
        message: The event, with the setting and its value if it is about one.
        next_step: The operator's next step.
        details: Plain values for programs: batch, phase, handle, outcome.
    """

    _OF_A_START = False
    """True for an error of a start, whose message gets a capital even if a sink's author wrote a small letter."""

    def __init__(self, message: str, *, next_step: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.details = details

    def __str__(self) -> str:
        return " ".join(self.lines())

    def lines(self) -> list[str]:
        """Returns the lines for people: the message, then the next step if there is one."""
        message = with_capital(self.message, self.details.get("setting")) if self._OF_A_START else self.message
        return [_stopped(message), *([f"Next: {_stopped(with_capital(self.next_step))}"] if self.next_step else [])]

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.next_step, self.details))


def with_capital(text: str, setting: object = None) -> str:
    """Returns the message with a capital letter, unless it begins with the setting's name."""
    is_name = re.split("[ ,]", text, maxsplit=1)[0] == setting
    return text[0].upper() + text[1:] if _WORD.match(text) and not is_name else text


def _stopped(text: str) -> str:
    """Returns the message with a full stop at its end."""
    text = text.rstrip()
    return text if text.endswith((".", "!", "?", "…", ":")) or not text else f"{text}."


def _rebuild(kind: type[SparkonceError], message: str, next_step: str, details: dict[str, Any]) -> SparkonceError:
    return kind(message, next_step=next_step, **details)


class ConfigurationError(SparkonceError):
    """A setting is missing, unknown, or contradicts another."""

    _OF_A_START = True


class SchemaError(ConfigurationError):
    """A column is missing or has a type that the sink refuses."""


class PreflightError(SparkonceError):
    """A server's setting, limit or permission does not allow the guarantee asked for."""

    _OF_A_START = True


class RegistryError(SparkonceError):
    """The schema registry refused, or gave no answer.

    For an answer ``details["status"]`` is the HTTP status, and ``details["code"]`` the registry's own, such as 40403.
    """


class LogError(SparkonceError):
    """The decision log cannot be trusted or used."""


class CorruptRecordError(LogError):
    """A record of the log has a wrong checksum or shape."""


class NewerFormatError(LogError):
    """A record of the log was written by a newer version of the library."""


class StaleLogError(LogError):
    """A server remembers commits that the log does not know: it is an old copy, or ran elsewhere."""


class StaleServerError(SparkonceError):
    """A server lost batches that were committed there: it went back to an older state.

    ``details["missing"]`` lists, by sink, the batches that are known to be missing.
    """


class RefusedBatchError(SparkonceError):
    """The log says that this batch must not run."""


class StaleBatchError(RefusedBatchError):
    """A later batch is already decided: another driver is ahead, or the checkpoint is an old copy."""


class CheckpointMismatchError(RefusedBatchError):
    """The log belongs to another query, or the batch was decided with other input offsets."""


class SupersededError(SparkonceError):
    """A newer run has claimed the query. This run has undone only its own transactions, and stops."""


class PrepareError(SparkonceError):
    """A slot could not prepare. Every prepared slot is aborted and nothing became visible."""


class OutageError(PrepareError):
    """A system could not be reached, or had no room, while a batch was written. A later try may succeed.

    If a writer raises it, the driver waits and writes the batch again, for as long as its patience lasts.
    """


class TransactionTooOldError(PrepareError):
    """The batch took longer than its transactions may live, so it could only be lost."""


class UnknownOutcomeError(SparkonceError):
    """A request's outcome is still unknown after the deadline. Nothing was undone; a restart asks again."""


class TransactionLostError(SparkonceError):
    """Decided rows are gone, and running the batch again did not give the same rows.

    ``details["lost"]`` lists each lost (sink, slot) with its rows, ``details["offsets"]`` the batch's input.
    ``details["same_rows"]`` is True if the replay gave the same rows in other slots: a start with the former slots
    then heals the batch.
    """


class FilesGoneError(SparkonceError):
    """Files of committed batches were deleted. ``details["gone"]`` lists them, relative to the sink's path."""


class QueryFailedError(SparkonceError):
    """A query has failed by any error. The message and the next step come without Spark's traces.

    Attributes:
        spark_is_gone: True if it failed because Spark itself has ended.
    """

    spark_is_gone = False

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that a notebook shows in place of a traceback."""
        return self.lines()


MOST_CHARACTERS = 1000


def one_line(said: object) -> str:
    """Returns the text in one line, without control characters, cut at a bounded length.

    A server may quote rows, and a line break or a terminal's control characters in them would forge lines of a log.
    """
    shown = "".join(one if one.isprintable() else " " for one in str(said))
    line = " ".join(shown.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"
