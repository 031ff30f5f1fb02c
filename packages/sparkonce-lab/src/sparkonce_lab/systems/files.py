"""A local folder that the files sink writes to, and rows in other folders: dead letters, and waiting rows.

Dead letters are rows that Kafka is made to reject. Such a row has a timestamp before 1970, which Kafka does not store,
but is otherwise normal. The rows of the write-ahead, RabbitMQ and Pravega sinks wait in a folder.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.errors import PreflightError
from sparkonce_lab.rig.disk import SmallDisk, affordable
from sparkonce_lab.systems.base import VerifiedSystem
from sparkonce_lab.systems.injections import of_disk

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.protocol.handles import Handle
    from sparkonce.sink import TwoPhaseCommitSink


MEGABYTES = 1024
HELD = ".sparkonce/held"
"""The folder in which the sink stores the files of prepared transactions."""


class FilesSystem(VerifiedSystem):
    """A local folder, on a disk of this size that can be filled if mounting is allowed, or a new one inside ``path``.

    The disk is in memory, and uses only as much of it as is written. `folder` is the folder that `place` has created.
    """

    name = "files"

    def __init__(self, path: str | Path | None = None, megabytes: int = MEGABYTES) -> None:
        self._users = path
        self._parent = Path(path or "").absolute()
        self._megabytes = megabytes
        self._disk: SmallDisk | None = None
        self._batches: dict[Path, int] = {}
        self._made: list[Path] = []
        self.folder = self._parent

    def start(self, folder: Path) -> None:
        if self._users is None:
            try:
                self._disk = SmallDisk(folder / "disk", affordable(self._megabytes))
            except OSError as error:
                raise self._refused(folder, error) from error
            self.injections = of_disk(self._disk)
            self._parent = self._disk.folder

    def stop(self) -> None:
        if self._disk is not None:
            self._disk.close()
            self._disk = None
        elif not self.keep_place:
            for folder in self._made:
                shutil.rmtree(folder, ignore_errors=True)
        self._made = []

    def place(self, *columns: str) -> None:
        self.folder = self._parent / f"sparkonce-verify-{secrets.token_hex(5)}"
        try:
            self.make(columns)
        except OSError as error:
            raise self._refused(self.folder, error) from error
        self._made.append(self.folder)

    def make(self, columns: Sequence[str]) -> None:  # noqa: ARG002 - a folder of files needs none
        self.folder.mkdir(parents=True)

    @staticmethod
    def _refused(folder: Path, error: OSError) -> PreflightError:
        return PreflightError(f"{folder} cannot be created: {error}", next_step="Name another folder.")

    def arguments(self, **options: Any) -> dict[str, Any]:
        return {"path": str(self.folder), **options}

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> TwoPhaseCommitSink:
        from sparkonce.sinks.files.sink import FilesSink

        return FilesSink(**arguments)

    def expire(self, handle: Handle) -> bool:
        """Deletes the held files of a transaction, as somebody might do while cleaning up."""
        from sparkonce.sinks.files.store import read_handle

        for one in read_handle(handle).files or ():
            (self.folder / HELD / str(one["held"])).unlink()
        return True

    def published(self) -> Sequence[Path]:
        """Lists the files that a reader of such folders reads: no part of their path begins with ``.`` or ``_``."""
        return [path for path in sorted(self.folder.rglob("*")) if path.is_file() and is_published(path, self.folder)]

    def visible(self, *columns: str) -> list[Any]:
        return [row for path in self.published() for row in rows_in(path.name, path.read_bytes(), columns)]

    def read(self) -> pa.Table:
        """Reads the rows. A file that is not Parquet or has other columns counts as one unreadable row."""
        import pyarrow as pa

        from sparkonce_lab.systems.observed import of_parquet, of_texts

        return pa.concat_tables([of_texts([]), *map(of_parquet, self.published())])

    def newest(self) -> int:
        """Reads each file's batch once."""
        from sparkonce_lab.systems.observed import newest_in

        files = self.published()
        self._batches |= {path: newest_in(path) for path in files if path not in self._batches}
        return max((self._batches[path] for path in files), default=-1)

    def left_open(self) -> Sequence[str]:
        """Returns held files."""
        return sorted(str(path) for path in (self.folder / HELD).rglob("*") if path.is_file())


def is_published(path: Path, root: Path) -> bool:
    """Returns True if readers of a folder read this file: no part of its relative path begins with ``.`` or ``_``."""
    return not any(part[0] in "._" for part in path.relative_to(root).parts)


def rows_in(name: str, content: bytes, columns: Sequence[str]) -> list[Any]:
    """Returns the rows of a Parquet or JSON file: each row's number, or a tuple of these columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = list(columns or ["number"])
    if name.endswith(".parquet"):
        rows = pq.ParquetFile(pa.BufferReader(content)).read(columns=wanted).to_pylist()
    else:
        rows = [json.loads(line) for line in content.splitlines()]
    return [tuple(row[name] for name in wanted) if columns else row["number"] for row in rows]


NAME = "dead-letters"
MOST = 1_000_000_000


def dead_letters_sink(folder: str) -> TwoPhaseCommitSink:
    """Creates the sink of dead letters, in the query's process."""
    from sparkonce.sinks.files.sink import FilesSink

    return FilesSink(folder, name=NAME)


def read_dead_letters(folder: Path) -> pa.Table:
    """Returns the rejected rows that a reader sees (see `sparkonce_lab.history.OBSERVED`), without locations."""
    import pyarrow.parquet as pq

    from sparkonce_lab.systems.observed import of_texts

    tables = [pq.read_table(path, columns=["row"]) for path in _system(folder).published()]
    rows = [json.loads(text)["value"].encode() for table in tables for text in table["row"].to_pylist()]
    return of_texts(rows)


def open_dead_letters(folder: Path) -> Sequence[str]:
    """Lists files that are neither published nor discarded."""
    return _system(folder).left_open() if folder.exists() else []


def _system(folder: Path) -> FilesSystem:
    system = FilesSystem()
    system.folder = folder
    return system


def waiting_rows(folder: Path) -> list[str]:
    """Lists the files of rows that are neither applied nor discarded: open, prepared, or in a store without renames."""
    folders = [found for name in ("open", "prepared", "rows") for found in folder.rglob(name)]
    files = [path for found in folders for path in found.rglob("*") if path.is_file()]
    return sorted(str(path) for path in files if not _has_begun(path))


def expire_rows(folder: Path, handle: Handle) -> bool:
    """Deletes the rows of a prepared transaction, which have no timeout, as somebody might do while cleaning up."""
    found = [path for path in folder.rglob(str(handle["name"])) if path.parent.name in ("prepared", "rows")]
    for path in found:
        path.unlink()
    return bool(found)


def _has_begun(rows: Path) -> bool:
    fate = rows.parent.parent / "fate" / rows.name
    try:
        return fate.read_text() == "started"
    except FileNotFoundError:
        return False
