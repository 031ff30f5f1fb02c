"""Maps the file system's errors to outcomes; an unlisted one is UNKNOWN, upon which nothing is undone."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.outcomes import Finished, Outcome

_TABLE: Mapping[int, tuple[Outcome, str]] = {
    errno.ENOSPC: (Outcome.RETRY, "The disk is full, and a new name needs room in its folder, too: free some."),
    errno.EDQUOT: (Outcome.RETRY, "The user's quota is used up: raise it, or free some space."),
    errno.EINTR: (Outcome.RETRY, "The call was interrupted."),
    errno.EAGAIN: (Outcome.RETRY, "The file system asks for patience."),
    errno.EBUSY: (Outcome.RETRY, "The file system asks for patience."),
    errno.EMFILE: (Outcome.RETRY, "This process has too many files open: raise its limit (ulimit -n)."),
    errno.ENFILE: (Outcome.RETRY, "The machine has too many files open."),
    errno.ESTALE: (Outcome.RETRY, "The file server has changed its mind about the folder."),
    errno.ETIMEDOUT: (Outcome.RETRY, "The file server does not answer."),
    errno.EIO: (Outcome.UNKNOWN, "The disk failed: look into the kernel's log."),
    errno.EACCES: (Outcome.UNKNOWN, "Permission denied: let this user write to the folder. Nothing is lost."),
    errno.EPERM: (Outcome.UNKNOWN, "Not permitted: let this user write to the folder. Nothing is lost."),
    errno.EROFS: (Outcome.UNKNOWN, "The file system is read-only: mount it for writing. Nothing is lost."),
    errno.EXDEV: (
        Outcome.UNKNOWN,
        "The folder is on another file system than the staged files: make it a plain folder again.",
    ),
    errno.ENOTDIR: (Outcome.UNKNOWN, "A file is where a folder has to be: move it away."),
    errno.ENAMETOOLONG: (Outcome.UNKNOWN, "The path is too long for the file system."),
}

CACHED = "It was not found, but its folder lists it: the mount's cache was old."


def of_error(error: OSError, path: str) -> Finished:
    """Returns the outcome of one file upon an error of the file system."""
    outcome, sentence = _TABLE.get(error.errno or 0, (Outcome.UNKNOWN, "Unlisted error, so the outcome is unknown."))
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    return Finished(outcome=outcome, reason=f"{path}: {name}: {sentence}")


@contextmanager
def asking(path: object) -> Iterator[None]:
    """Turns the file system's errors into an `UnknownOutcomeError` that names the path."""
    try:
        yield
    except OSError as error:
        raise UnknownOutcomeError(
            f"{path}: {error.strerror or error}.", next_step="See whether its disk can be read and written."
        ) from error
