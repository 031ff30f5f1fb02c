"""Reads Spark's own checkpoint folder: the query's id, each batch's input offsets, and which batches are done.

Format, read off Spark 4.0: ``metadata`` is JSON with ``id``; ``offsets/N``, written before batch N runs, has a version
line ``v1``, a JSON line of watermark, timestamp and settings, then one JSON line for each source; ``commits/N`` is
written after batch N.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from sparkonce.errors import CheckpointMismatchError


class SparkCheckpoint:
    """A query's checkpoint, as Spark writes it.

    Args:
        folder: The query's checkpoint folder. It is missing before the query's first start.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def exists(self) -> bool:
        """Tells if the folder is a query's checkpoint."""
        return (self.folder / "metadata").is_file() and (self.folder / "offsets").is_dir()

    def query_id(self) -> str | None:
        """Returns the query's id, or None if no query has started on the checkpoint yet.

        Raises:
            CheckpointMismatchError: if the file holds no id.
        """
        path = self.folder / "metadata"
        try:
            return str(json.loads(path.read_text())["id"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointMismatchError(
                f"{path} does not hold a query's id: {error!r}", next_step="Restore the checkpoint from a copy."
            ) from error

    def input_offsets(self, batch: int) -> tuple[str, ...] | None:
        """Returns a batch's end offsets, one canonical JSON text a source; None if Spark does not have the batch.

        Raises:
            CheckpointMismatchError: if the file is not one of Spark's.
        """
        path = self._offsets(batch)
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise CheckpointMismatchError(
                f"{path} is not text: {error}", next_step="Restore the checkpoint from a copy."
            ) from error
        version, _, rest = text.partition("\n")
        if not version.startswith("v") or not rest:
            raise CheckpointMismatchError(
                f"{path} does not begin like one of Spark's offset logs: {version!r}.",
                next_step="Restore the checkpoint from a copy.",
            )
        return tuple(_canonical(line) for line in rest.splitlines()[1:])

    def source_lines(self, batch: int) -> list[str]:
        """Returns a batch's line for each source as it was written; empty if the file was cut off."""
        return self._offsets(batch).read_text(errors="replace").splitlines()[2:]

    def begun(self) -> int:
        """Returns the newest batch that Spark has planned, -1 if there is none."""
        return self._newest("offsets")

    def finished(self) -> int:
        """Returns the newest batch that Spark has recorded as done, -1 if there is none."""
        return self._newest("commits")

    def is_finished(self, batch: int) -> bool:
        """Returns whether Spark has recorded a batch as done."""
        return (self.folder / "commits" / str(batch)).exists()

    def is_unrecorded(self, batch: int) -> bool:
        """Tells if a batch has begun and is not recorded as done."""
        return self._offsets(batch).exists() and not self.is_finished(batch)

    def finished_watermark_ms(self) -> int:
        """Returns the watermark of the newest batch that is done, in milliseconds since the epoch; 0 without one."""
        with suppress(FileNotFoundError, IndexError, KeyError, ValueError):
            lines = self._offsets(self.finished()).read_text().splitlines()
            return int(json.loads(lines[1])["batchWatermarkMs"])
        return 0

    def _offsets(self, batch: int) -> Path:
        return self.folder / "offsets" / str(batch)

    def _newest(self, log: str) -> int:
        try:
            return max((int(one.name) for one in (self.folder / log).iterdir() if one.name.isdigit()), default=-1)
        except (FileNotFoundError, NotADirectoryError):
            return -1


def _canonical(line: str) -> str:
    """Returns the same text for the same offsets; Spark writes ``-`` for a source that has none yet."""
    try:
        return json.dumps(json.loads(line), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return line
