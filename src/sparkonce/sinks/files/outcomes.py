"""What file systems' answers mean: one table, and how the files of a transaction make one outcome.

What is not listed is UNKNOWN: nobody knows what was done, so nothing is undone.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.sinks.files.store import Fields, FileState
from sparkonce.words import one_line

_ERRNO: Mapping[int, tuple[Outcome, str]] = {
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
        "The folder is on another file system than the files held back: make it a plain folder again.",
    ),
    errno.ENOTDIR: (Outcome.UNKNOWN, "A file stands where a folder has to be: move it away."),
    errno.ENAMETOOLONG: (Outcome.UNKNOWN, "The path is too long for the file system."),
}

FOREIGN = "Something else stands there, which is never overwritten: compare it, and move it away."
FOLDER_GONE = "Somebody deleted its folder, which is made again."
CACHED = "It was not found, but its folder lists it: the mount's cache was old."
MISSING = "It is neither held back nor published: somebody deleted it."
DAMAGED = "It is held back, and is not as it was written: its size or its end is another."


def of_error(error: OSError, path: str) -> Finished:
    """What an error of the file system says of one file."""
    outcome, sentence = _ERRNO.get(error.errno or 0, (Outcome.UNKNOWN, "No error that this call is known to give."))
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    return Finished(outcome=outcome, reason=f"{path}: {name}: {sentence}")


_HDFS: Mapping[str, tuple[Outcome, str]] = {
    "AccessControlException": (
        Outcome.UNKNOWN,
        "Permission denied: let this user write to the folder. Nothing is lost.",
    ),
    "NSQuotaExceededException": (Outcome.RETRY, "The folder's quota of names is used up: raise it."),
    "DSQuotaExceededException": (Outcome.RETRY, "The folder's quota of bytes is used up: raise it."),
    "could only be written to": (Outcome.RETRY, "No data node takes a block: they are away, or full."),
    "SafeModeException": (Outcome.RETRY, "The name node is in safe mode."),
    "StandbyException": (Outcome.RETRY, "Another name node is the active one now."),
    "RetriableException": (Outcome.RETRY, "The name node asks for patience."),
    "ParentNotDirectoryException": (
        Outcome.UNKNOWN,
        "A file stands where a folder has to be: move it away.",
    ),
    "FileAlreadyExistsException": (
        Outcome.UNKNOWN,
        "A file stands where a folder has to be: move it away.",
    ),
}


def of_hdfs_error(error: BaseException, path: str) -> Finished:
    """What an error of HDFS's client says of one file. It names the Java exception that the name node raised."""
    text = one_line(str(error).split("\\n")[0].split("\n")[0])
    if isinstance(error, TimeoutError):
        return Finished(outcome=Outcome.RETRY, reason=f"{path}: {text}")
    if isinstance(error, OSError):
        return Finished(outcome=Outcome.RETRY, reason=f"{path}: {type(error).__name__}: {text}")
    for name, (outcome, sentence) in _HDFS.items():
        if name in text:
            return Finished(outcome=outcome, reason=f"{path}: {name}: {sentence}")
    return Finished(outcome=Outcome.UNKNOWN, reason=f"{path}: no error that this call is known to give: {text}")


def before_publish(files: Sequence[Fields], standings: Sequence[FileState]) -> Finished | None:
    """What is known of a transaction of several files before one is published; None if it has to be published.

    Readers see all of a transaction's files or, for ever, none: so where one is gone, no other is published any more.
    """
    found = [(one["path"], standing) for one, standing in zip(files, standings, strict=True)]
    gone = [f"{path}: {_LOST[standing]}" for path, standing in found if standing in _LOST]
    unknown = [path for path, standing in found if standing is FileState.UNKNOWN]
    published = [path for path, standing in found if standing is FileState.PUBLISHED]
    if unknown:
        return Finished(outcome=Outcome.UNKNOWN, reason=f"{unknown[0]}: {FOREIGN}")
    if gone and published:
        reason = f"{gone[0]} {len(published)} of its transaction's {len(files)} files are published."
        return Finished(outcome=Outcome.UNKNOWN, reason=reason)
    if gone:
        return Finished(outcome=Outcome.LOST, reason=gone[0])
    if len(published) == len(files):
        return Finished(outcome=Outcome.ALREADY_COMMITTED)
    return None


def of_commit(files: Sequence[Finished]) -> Finished:
    """One outcome of a transaction of whose files each has been published, or not."""
    kinds = {one.outcome for one in files}
    if Outcome.LOST in kinds and len(kinds) > 1:
        lost = next(one for one in files if one.outcome is Outcome.LOST)
        return Finished(outcome=Outcome.UNKNOWN, reason=f"{lost.reason} Other files of its transaction are published.")
    return _weakest(files, _COMMIT_ORDER)


def of_abort(files: Sequence[Finished]) -> Finished:
    """One outcome of a transaction of whose files each has been discarded, or not."""
    return _weakest(files, _ABORT_ORDER)


_LOST: Mapping[FileState, str] = {FileState.GONE: MISSING, FileState.DAMAGED: DAMAGED}
_COMMIT_ORDER = (Outcome.UNKNOWN, Outcome.RETRY, Outcome.LOST, Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)
_ABORT_ORDER = (Outcome.UNKNOWN, Outcome.RETRY, Outcome.ALREADY_COMMITTED, Outcome.ABORTED)


def _weakest(files: Sequence[Finished], order: Sequence[Outcome]) -> Finished:
    return min(files, key=lambda one: order.index(one.outcome))
