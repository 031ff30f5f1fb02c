"""Mends Spark's checkpoint after a crash of the machine, by the decision log.

Spark never calls fsync. What it wrote in the last half minute before a power cut may be there by name and empty. A run
makes Spark's files durable before each decision, so what is empty belongs to no decision, or its content is in the log.
"""

from __future__ import annotations

import json
import logging
import shlex
import time

from sparkonce.checkpoint.offsets import without_files
from sparkonce.checkpoint.spark import SparkCheckpoint
from sparkonce.errors import CheckpointMismatchError
from sparkonce.protocol.view import LogView

logger = logging.getLogger("sparkonce")


def mend(checkpoint: SparkCheckpoint, view: LogView) -> None:
    """Writes empty files of Spark's again whose content is in the decision log.

    Args:
        checkpoint: The query's, which nobody runs on.
        view: Its decision log.

    Raises:
        CheckpointMismatchError: if other files are empty, with the command that deletes them where that is safe.
    """
    files = checkpoint.files
    empty = set(files.emptied())
    if not empty:
        return
    run = view.newest_run
    if "metadata" in empty and run is not None:
        _write(checkpoint, "metadata", json.dumps({"id": run.query}))
        empty.discard("metadata")
    for name in sorted(empty):
        folder, _, number = name.partition("/")
        decision = view.decision(int(number)) if folder == "offsets" and number.isdigit() else None
        if decision is not None:
            lines = ["v1", _header(checkpoint, decision.batch), *map(without_files, decision.offsets)]
            _write(checkpoint, name, "\n".join(lines))
            empty.discard(name)
    if empty:
        _refuse(checkpoint, sorted(empty), view)


def _write(checkpoint: SparkCheckpoint, name: str, text: str) -> None:
    files = checkpoint.files
    folder, _, file = name.rpartition("/")
    files.delete([f"{folder}/.{file}.crc".lstrip("/")])  # Spark's checksum of the lost content
    files.replace(name, text.encode())
    logger.warning("A crash of the machine emptied %s/%s: rewritten from the decision log.", files.location, name)


def _header(checkpoint: SparkCheckpoint, batch: int) -> str:
    """Returns the second line of ``offsets/N``, with watermark and settings: those of the batch before."""
    before = (checkpoint.files.read(f"offsets/{batch - 1}") or b"").decode(errors="replace").splitlines()
    header = json.loads(before[1]) if len(before) > 1 else {"batchWatermarkMs": 0, "conf": {}}
    return json.dumps({**header, "batchTimestampMs": time.time_ns() // 1_000_000}, separators=(",", ":"))


def _refuse(checkpoint: SparkCheckpoint, empty: list[str], view: LogView) -> None:
    newest = view.newest_decision
    decided = -1 if newest is None else newest.batch
    listed = _listed(newest.offsets) if newest is not None else {}
    lost = [name for name in empty if not _may_go(name, decided, listed)]
    location = checkpoint.files.location
    paths = " ".join(shlex.quote(f"{location}/{name}") for name in empty)
    raise CheckpointMismatchError(
        f"checkpoint={location!r}: a crash of the machine emptied {', '.join(lost or empty)}, which Spark had written "
        "and not made durable.",
        next_step=f"Batch {decided} is decided and needs them: restore the checkpoint with its log from a copy."
        if lost
        else f"Delete them, no decided batch needs them and Spark writes them again: rm {paths}",
    )


def _listed(offsets: tuple[str, ...]) -> dict[str, int]:
    """Returns for each file source, by its number, the entry of its log that the newest decided batch has read to."""
    found = {str(source): json.loads(line) for source, line in enumerate(offsets) if '"logOffset"' in line}
    return {source: int(offset["logOffset"]) for source, offset in found.items()}


def _may_go(name: str, decided: int, listed: dict[str, int]) -> bool:
    """Returns True if a file can be deleted: Spark plans the batch anew, or runs a decided batch once more."""
    folder, _, rest = name.partition("/")
    if folder == "sources":
        source, _, entry = rest.partition("/")
        return int(entry.removesuffix(".compact")) > listed.get(source, -1)
    return folder == "commits" or (folder == "offsets" and int(rest) > decided) or (name == "metadata" and decided < 0)
