"""Rows that wait in a folder, as those of the write-ahead sink and of RabbitMQ's and Pravega's sinks do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkonce.protocol.handles import Handle


def waiting_rows(folder: Path) -> list[str]:
    """Names the files of rows that are neither applied nor given up: open, prepared, or in a store without renames."""
    folders = [found for name in ("open", "prepared", "rows") for found in folder.rglob(name)]
    files = [path for found in folders for path in found.rglob("*") if path.is_file()]
    return sorted(str(path) for path in files if not _has_begun(path))


def expire_rows(folder: Path, handle: Handle) -> bool:
    """Deletes the rows of a prepared transaction. Nothing times out; but somebody may delete files."""
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
