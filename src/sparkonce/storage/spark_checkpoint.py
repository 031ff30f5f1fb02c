"""Reads Spark's own checkpoint folder: the query's id, each batch's input offsets, and which batches are done.

The format is that of Spark 4.0 to 4.3. The file ``metadata`` is JSON with the key ``id``. Spark writes ``offsets/N``
before it runs batch N, and ``commits/N`` afterward. ``offsets/N`` has a line with its version, ``v1``, a JSON line with
watermark, timestamp and settings, and then one JSON line per source. In version ``v2``, which Spark 4.2 and later write
with ``spark.sql.streaming.offsetLog.formatVersion=2``, the sources' lines are in no particular order, and each begins
with the source's name and a colon, such as ``0:`` for the first source without a name.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress

from sparkonce.errors import CheckpointMismatchError
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.offsets import FILES

_METADATA = "metadata"


class SparkCheckpoint:
    """A query's checkpoint, as Spark writes it. The folder is missing before the query's first start."""

    def __init__(self, files: CheckpointFiles) -> None:
        self.files = files

    def exists(self) -> bool:
        """Returns True if the folder is a query's checkpoint."""
        return self.files.read(_METADATA) is not None

    def query_id(self) -> str | None:
        """Returns the query's id, or None if no query has started on the checkpoint yet.

        Raises:
            CheckpointMismatchError: If the file ``metadata`` contains no id.
        """
        data = self.files.read(_METADATA)
        if data is None:
            return None
        try:
            return str(json.loads(data)["id"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointMismatchError(
                f"{self._shown(_METADATA)} does not hold a query's id: {error!r}",
                next_step=self.files.mending(_METADATA),
            ) from error

    def input_offsets(self, batch: int) -> tuple[str, ...] | None:
        """Returns a batch's end offsets, one line of canonical JSON per source; None if Spark has no such batch.

        Raises:
            CheckpointMismatchError: If the file was not written by Spark.
        """
        data, where = self._offsets(batch), self._shown(f"offsets/{batch}")
        if data is None:
            return None
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise CheckpointMismatchError(
                f"{where} is not text: {error}", next_step=self.files.mending(f"offsets/{batch}")
            ) from error
        version, _, rest = text.partition("\n")
        if not version.startswith("v") or not rest:
            raise CheckpointMismatchError(
                f"{where} does not begin like one of Spark's offset logs: {version!r}.",
                next_step=self.files.mending(f"offsets/{batch}"),
            )
        lines = _sources(version, rest.splitlines()[1:])
        return tuple(self._with_files(source, canonical(line)) for source, line in enumerate(lines))

    def is_in_source_order(self, batch: int) -> bool:
        """Returns True if a batch's offsets are in source order, as in version 1 of Spark's offset log."""
        return (self._offsets(batch) or b"").startswith(b"v1\n")

    def source_lines(self, batch: int) -> list[str]:
        """Returns a batch's offsets for each source as Spark wrote them; empty if the file was truncated."""
        version, *rest = (self._offsets(batch) or b"").decode(errors="replace").splitlines() or [""]
        return _sources(version, rest[1:])

    def begun(self) -> int:
        """Returns the latest batch that Spark has planned; -1 if there is none."""
        return self._newest("offsets")

    def finished(self) -> int:
        """Returns the latest batch that Spark has recorded as done; -1 if there is none."""
        return self._newest("commits")

    def is_finished(self, batch: int) -> bool:
        """Returns True if Spark has recorded a batch as done."""
        return self.files.read(f"commits/{batch}") is not None

    def is_unrecorded(self, batch: int) -> bool:
        """Returns True if a batch has started and is not recorded as done."""
        return self._offsets(batch) is not None and not self.is_finished(batch)

    def finished_watermark_ms(self) -> int:
        """Returns the watermark of the latest finished batch, in milliseconds since the epoch; 0 if there is none."""
        with suppress(IndexError, KeyError, ValueError):
            lines = (self._offsets(self.finished()) or b"").decode().splitlines()
            return int(json.loads(lines[1])["batchWatermarkMs"])
        return 0

    def _with_files(self, source: int, line: str) -> str:
        """Adds a digest of the files that a file source's offset covers, if Spark still has their list.

        Spark lists the files in ``sources/0/2`` or, together with those of earlier batches, in ``sources/0/2.compact``:
        a version line, and then one JSON line per file with its path and ``batchId``.
        """
        if not line.startswith('{"logOffset":'):
            return line
        number = json.loads(line)["logOffset"]
        for name in (f"sources/{source}/{number}", f"sources/{source}/{number}.compact"):
            entry = f'"batchId":{number}'.encode()
            lines = (self.files.read(name) or b"").splitlines()
            found = [one for one in lines if entry + b"}" in one or entry + b"," in one]
            if found:
                digest = hashlib.blake2b(b"\n".join(sorted(found)), digest_size=8).hexdigest()
                return json.dumps({FILES: digest, "logOffset": number}, separators=(",", ":"))
        return line

    def _offsets(self, batch: int) -> bytes | None:
        return self.files.read(f"offsets/{batch}")

    def _newest(self, log: str) -> int:
        return max((int(name) for name in self.files.names(log) if name.isdigit()), default=-1)

    def _shown(self, path: str) -> str:
        return f"{self.files.location}/{path}"


def _sources(version: str, lines: list[str]) -> list[str]:
    """Returns the sources' offsets without their names, sorted by name; unnamed sources have numbers."""
    if version.strip() != "v2":
        return lines
    named = [line.partition(":") for line in lines]
    named.sort(key=lambda one: (not one[0].isdigit(), int(one[0]) if one[0].isdigit() else 0, one[0]))
    return [offset for _, _, offset in named]


def canonical(line: str) -> str:
    """Returns an offset as canonical JSON. Other text, such as Spark's ``-`` for no offset, is returned unchanged."""
    try:
        return json.dumps(json.loads(line), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return line
