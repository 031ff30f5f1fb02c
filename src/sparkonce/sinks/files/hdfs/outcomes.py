"""Maps the errors of HDFS's client to outcomes; an unlisted one is UNKNOWN, upon which nothing is undone."""

from __future__ import annotations

from sparkonce.errors import OutageError, PrepareError
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks._shared.error_table import ErrorTable, Meaning
from sparkonce.words import one_line

_RETRY, _UNKNOWN = Outcome.RETRY, Outcome.UNKNOWN
_NO_FOLDER = "A file is where a folder has to be: move it away."

_MEANINGS = {
    "AccessControlException": Meaning(
        _UNKNOWN, "Permission denied: let this user write to the folder. Nothing is lost."
    ),
    "NSQuotaExceededException": Meaning(_RETRY, "The folder's quota of names is used up: raise it."),
    "DSQuotaExceededException": Meaning(_RETRY, "The folder's quota of bytes is used up: raise it."),
    "could only be written to": Meaning(_RETRY, "No data node takes a block: they are away, or full."),
    "SafeModeException": Meaning(_RETRY, "The name node is in safe mode."),
    "StandbyException": Meaning(_RETRY, "Another name node is the active one now."),
    "RetriableException": Meaning(_RETRY, "The name node asks for patience."),
    "ParentNotDirectoryException": Meaning(_UNKNOWN, _NO_FOLDER),
    "FileAlreadyExistsException": Meaning(_UNKNOWN, _NO_FOLDER),
}
_TABLE = ErrorTable[str]({}, phrases=tuple(_MEANINGS.items()))

_OF_ONE_FILE = (FileNotFoundError, FileExistsError, PermissionError)
"""Errors that come again however long one waits."""


def of_error(error: BaseException, path: str) -> Finished:
    """Returns the outcome of one file upon an error of the client, which names the name node's Java exception."""
    text = one_line(str(error).split("\\n")[0].split("\n")[0])
    if isinstance(error, TimeoutError):
        return Finished(outcome=_RETRY, reason=f"{path}: {text}")
    if isinstance(error, OSError):
        return Finished(outcome=_RETRY, reason=f"{path}: {type(error).__name__}: {text}")
    return _TABLE.finished("", text, shown=f"{path}: {text}")


def prepare_error(error: BaseException, path: str) -> PrepareError:
    """Returns the error of a failed write, upon which nothing of the batch became visible."""
    later = of_error(error, path).outcome is Outcome.RETRY and not isinstance(error, _OF_ONE_FILE)
    return (OutageError if later else PrepareError)(
        f"{path} could not be written: {first_line(error)}",
        next_step="See whether the cluster runs and has room; nothing of the batch became visible.",
        path=path,
    )


def first_line(error: BaseException) -> str:
    """Returns an error's text without the stack that the client appends."""
    return one_line(f"{type(error).__name__}: {str(error).split(chr(10))[0]}")
