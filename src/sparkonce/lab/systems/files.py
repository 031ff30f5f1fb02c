"""A folder of Parquet files."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.errors import PreflightError
from sparkonce.lab.systems.base import System
from sparkonce.lab.systems.injections import Injectable, of_disk
from sparkonce.rig.disk import SmallDisk, affordable
from sparkonce.testing.systems.files import FilesWitness

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sink import TwoPhaseCommitSink

MEGABYTES = 1024


class FilesSystem(Injectable, System):
    """A folder of our own, on a disk that can be filled where mounting is allowed; or a new one in the user's.

    Args:
        path: The user's folder; None for one of our own.
        megabytes: The size of our own disk, which is in memory and takes as much of it as is written.
    """

    name = "files"

    def __init__(self, path: str | None = None, megabytes: int = MEGABYTES) -> None:
        self._users = path
        self._megabytes = megabytes
        self._disk: SmallDisk | None = None
        self._batches: dict[Path, int] = {}
        self._made = False
        self.injections = {}
        self.folder = Path(path or "").absolute() / f"sparkonce-verify-{secrets.token_hex(5)}"

    def start(self, folder: Path) -> None:
        """See `System.start`."""
        try:
            if self._users is None:
                self._disk = SmallDisk(folder / "disk", affordable(self._megabytes))
                self.injections = of_disk(self._disk)
                self.folder = self._disk.folder / "out"
            self._make()
            self._made = True
        except OSError as error:
            raise PreflightError(f"{self.folder} cannot be made: {error}", next_step="Name another folder.") from error

    def stop(self) -> None:
        """See `System.stop`."""
        if self._disk is not None:
            self._disk.close()
            self._disk = None
        elif self._made and not self.keep_place:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._made = False

    def sink_settings(self) -> Mapping[str, Any]:
        """See `System.sink_settings`."""
        return {"path": str(self.folder)}

    @staticmethod
    def build(settings: Mapping[str, Any]) -> TwoPhaseCommitSink:
        """See `System.build`."""
        from sparkonce.sinks.files.sink import FilesSink

        return FilesSink(settings["path"], name=FilesSystem.name)

    def read(self) -> pa.Table:
        """See `System.read`. A file that is not one of Parquet's, or has other columns, gives one unreadable row."""
        import pyarrow as pa

        from sparkonce.lab.systems.observed import of_parquet, of_texts

        return pa.concat_tables([of_texts([]), *map(of_parquet, self._files())])

    def newest(self) -> int:
        """See `System.newest`. Reads each file's batch once."""
        from sparkonce.lab.systems.observed import newest_in

        files = self._files()
        self._batches |= {path: newest_in(path) for path in files if path not in self._batches}
        return max((self._batches[path] for path in files), default=-1)

    def left_open(self) -> Sequence[str]:
        """See `System.left_open`."""
        return FilesWitness(self.folder).left_open()

    def _make(self) -> None:
        """Makes the place of the rows."""
        self.folder.mkdir(parents=True)

    def _files(self) -> Sequence[Path]:
        """Returns the Parquet files that readers read."""
        return FilesWitness(self.folder).published()
