"""One outcome of a transaction from those of its files, and the sentences that all stores share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks.files.store import Fields, FileState

FOREIGN = "Another file is there, which is never overwritten: compare it, and move it away."
FOLDER_GONE = "Somebody deleted its folder, which is made again."
MISSING = "It is neither staged nor published: somebody deleted it."
DAMAGED = "It is staged, but not as it was written: its size or its end differs."

_LOST: Mapping[FileState, str] = {FileState.GONE: MISSING, FileState.DAMAGED: DAMAGED}
_COMMIT_ORDER = (Outcome.UNKNOWN, Outcome.RETRY, Outcome.LOST, Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)
_ABORT_ORDER = (Outcome.UNKNOWN, Outcome.RETRY, Outcome.ALREADY_COMMITTED, Outcome.ABORTED)


def before_publish(files: Sequence[Fields], states: Sequence[FileState]) -> Finished | None:
    """Returns the outcome of a transaction of several files before any is published; None if it has to be published.

    Readers get all of a transaction's files or, forever, none: so if one is gone, no other is published any more.
    """
    found = [(one["path"], state) for one, state in zip(files, states, strict=True)]
    gone = [f"{path}: {_LOST[state]}" for path, state in found if state in _LOST]
    unknown = [path for path, state in found if state is FileState.UNKNOWN]
    published = [path for path, state in found if state is FileState.PUBLISHED]
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
    """Returns the one outcome of a transaction after `FileStore.publish` of its files."""
    kinds = {one.outcome for one in files}
    if Outcome.LOST in kinds and len(kinds) > 1:
        lost = next(one for one in files if one.outcome is Outcome.LOST)
        return Finished(outcome=Outcome.UNKNOWN, reason=f"{lost.reason} Other files of its transaction are published.")
    return _weakest(files, _COMMIT_ORDER)


def of_abort(files: Sequence[Finished]) -> Finished:
    """Returns the one outcome of a transaction after `FileStore.discard` of its files."""
    return _weakest(files, _ABORT_ORDER)


def _weakest(files: Sequence[Finished], order: Sequence[Outcome]) -> Finished:
    return min(files, key=lambda one: order.index(one.outcome))
