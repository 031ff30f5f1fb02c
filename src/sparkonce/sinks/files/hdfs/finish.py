"""Publishes and discards staged files, from any process, by their two names."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import COMMITTED, Finished, Outcome
from sparkonce.sinks.files.hdfs.outcomes import first_line, of_error
from sparkonce.sinks.files.outcomes import DAMAGED, FOLDER_GONE, FOREIGN, MISSING
from sparkonce.sinks.files.store import Fields, FileState
from sparkonce.storage.files import within

if TYPE_CHECKING:
    from hdfs_native import Client


class Finisher:
    """Publishes, looks for and discards files of one folder.

    Args:
        client: The client.
        location: The sink's folder with its cluster, for messages.
        root: The sink's folder, without a slash at its end.
        held: The folder of staged files within it.
        deadline_s: How long the cluster may be silent.
        known: Paths and checksums of files that need not be read again, shared by all finishers of a store.
    """

    def __init__(
        self, client: Client, location: str, root: str, held: str, deadline_s: float, known: set[tuple[str, str]]
    ) -> None:
        self._client = client
        self._location = location
        self._root = root
        self._held = held
        self._deadline_s = deadline_s
        self._known = known

    def look(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """See `FileStore.look`."""
        found = within(self._deadline_s, [partial(self._look, one) for one in files])
        lost = [one for one in found if isinstance(one, BaseException)]
        if lost:
            raise UnknownOutcomeError(f"{self._location}: {first_line(lost[0])}")
        return [one for one in found if not isinstance(one, BaseException)]

    def _look(self, fields: Fields) -> FileState:
        length = self._length(f"{self._held}/{fields['held']}")
        if length == fields["size"]:
            return FileState.STAGED
        final = self._final(fields)
        if self._length(final) is None:
            if length is not None:
                return FileState.DAMAGED
            self._client.get_file_info(self._held)  # raises if all are missing
            return FileState.GONE
        return FileState.PUBLISHED if self._matches(final, fields) else FileState.UNKNOWN

    # --- publish ----------------------------------------------------------------------------------------------------

    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.publish`. Files without an answer are left to the next call, which need not read the rest."""
        folders = sorted({_folder(one) for one in files} - {""})
        made = dict(zip(folders, self._each(self._make, folders), strict=True))
        going = [one for one in files if _folder(one) not in made or _is_made(made, one)]
        answers = dict(zip(map(id, going), self._each(self._rename, going), strict=True))
        found = [answers.get(id(one)) or made[_folder(one)] for one in files]
        if all(one.outcome in COMMITTED for one in found):
            self._known.clear()  # nothing of them is asked again
        return found

    def _make(self, folder: str) -> Finished:
        self._client.mkdirs(f"{self._root}/{folder}", 0o755, True)
        return Finished(outcome=Outcome.COMMITTED)

    def _rename(self, fields: Fields) -> Finished:
        held, final = f"{self._held}/{fields['held']}", self._final(fields)
        if self._length(held) not in (None, fields["size"]):
            return self._of_damaged(final)
        try:
            self._client.rename(held, final, False)
        except FileExistsError:
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        except FileNotFoundError:
            return self._without_held(fields, held, final)
        self._known.add((final, str(fields["checksum"])))
        return Finished(outcome=Outcome.COMMITTED)

    def _of_damaged(self, final: str) -> Finished:
        if self._length(final) is not None:
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        return Finished(outcome=Outcome.LOST, reason=f"{final}: {DAMAGED}")

    def _without_held(self, fields: Fields, held: str, final: str) -> Finished:
        # Looked for first: a file that another driver renames after this is asked for again, and not taken for lost.
        if self._length(held) is not None:
            return Finished(outcome=Outcome.RETRY, reason=f"{final}: {FOLDER_GONE}")
        if self._length(final) is not None:
            if self._matches(final, fields):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        try:
            self._client.get_file_info(self._held)
        except FileNotFoundError:
            # Not one file is missing but all: it is another cluster, or the whole folder is gone.
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{self._held} is not there: is this the right cluster?")
        return Finished(outcome=Outcome.LOST, reason=f"{final}: {MISSING}")

    # --- discard ----------------------------------------------------------------------------------------------------

    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.discard`. A writer that still writes to a deleted file can no longer close it."""
        return self._each(self._discard, files)

    def _discard(self, fields: Fields) -> Finished:
        deleted = self._client.delete(f"{self._held}/{fields['held']}")
        if not deleted and "path" in fields and self._matches(self._final(fields), fields):
            return Finished(outcome=Outcome.ALREADY_COMMITTED)
        return Finished(outcome=Outcome.ABORTED)

    # --- asking -----------------------------------------------------------------------------------------------------

    def _final(self, fields: Fields) -> str:
        return f"{self._root}/{fields['path']}"

    def _each(self, call: Callable[[Any], Finished], items: Sequence[Any]) -> list[Finished]:
        found = within(self._deadline_s, [partial(call, one) for one in items])
        return [
            of_error(one, _named(item)) if isinstance(one, BaseException) else one
            for one, item in zip(found, items, strict=True)
        ]

    def _length(self, path: str) -> int | None:
        try:
            found = self._client.get_file_info(path)
        except FileNotFoundError:
            return None
        return -1 if found.isdir else int(found.length)

    def _matches(self, path: str, fields: Fields) -> bool:
        """Returns whether a file has its size and its checksum."""
        if self._length(path) != fields["size"]:
            return False
        # Read once only: within a deadline some of many large files may be read, and the others at the next call.
        if (path, str(fields["checksum"])) in self._known:
            return True
        crc = 0
        for chunk in self._client.read(path).read_range_stream(0, int(fields["size"])):
            crc = zlib.crc32(chunk, crc)
        if f"crc32:{crc:08x}" != fields["checksum"]:
            return False
        self._known.add((path, str(fields["checksum"])))
        return True


def _named(item: Any) -> str:
    """Returns the name of a folder, or of a file by its fields."""
    return item if isinstance(item, str) else str(item.get("path") or item["held"])


def _folder(fields: Fields) -> str:
    return str(fields["path"]).rpartition("/")[0]


def _is_made(made: Mapping[str, Finished], fields: Fields) -> bool:
    return made[_folder(fields)].outcome is Outcome.COMMITTED
