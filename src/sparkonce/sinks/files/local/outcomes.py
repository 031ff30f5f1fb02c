"""Maps the file system's errors to outcomes; an unlisted one is UNKNOWN, upon which nothing is undone."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks._shared.error_table import ErrorTable, Meaning

_RETRY, _UNKNOWN = Outcome.RETRY, Outcome.UNKNOWN
_PATIENCE = Meaning(_RETRY, "The file system asks for patience.")

_TABLE = ErrorTable(
    {
        errno.ENOSPC: Meaning(_RETRY, "The disk is full, and a new name needs room in its folder, too: free some."),
        errno.EDQUOT: Meaning(_RETRY, "The user's quota is used up: raise it, or free some space."),
        errno.EINTR: Meaning(_RETRY, "The call was interrupted."),
        errno.EAGAIN: _PATIENCE,
        errno.EBUSY: _PATIENCE,
        errno.EMFILE: Meaning(_RETRY, "This process has too many files open: raise its limit (ulimit -n)."),
        errno.ENFILE: Meaning(_RETRY, "The machine has too many files open."),
        errno.ESTALE: Meaning(_RETRY, "The file server has changed its mind about the folder."),
        errno.ETIMEDOUT: Meaning(_RETRY, "The file server does not answer."),
        errno.EIO: Meaning(_UNKNOWN, "The disk failed: look into the kernel's log."),
        errno.EACCES: Meaning(_UNKNOWN, "Permission denied: let this user write to the folder. Nothing is lost."),
        errno.EPERM: Meaning(_UNKNOWN, "Not permitted: let this user write to the folder. Nothing is lost."),
        errno.EROFS: Meaning(_UNKNOWN, "The file system is read-only: mount it for writing. Nothing is lost."),
        errno.EXDEV: Meaning(
            _UNKNOWN, "The folder is on another file system than the staged files: make it a plain folder again."
        ),
        errno.ENOTDIR: Meaning(_UNKNOWN, "A file is where a folder has to be: move it away."),
        errno.ENAMETOOLONG: Meaning(_UNKNOWN, "The path is too long for the file system."),
    }
)

CACHED = "It was not found, but its folder lists it: the mount's cache was old."


def of_error(error: OSError, path: str) -> Finished:
    """Returns the outcome of one file upon an error of the file system."""
    code = error.errno or 0
    return _TABLE.finished(code, "", shown=f"{path}: {errno.errorcode.get(code, type(error).__name__)}")


@contextmanager
def asking(path: object) -> Iterator[None]:
    """Turns the file system's errors into an `UnknownOutcomeError` that names the path."""
    try:
        yield
    except OSError as error:
        raise UnknownOutcomeError(
            f"{path}: {error.strerror or error}.", next_step="See whether its disk can be read and written."
        ) from error
