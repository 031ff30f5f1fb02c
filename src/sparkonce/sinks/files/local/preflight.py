"""Tries at a start what publishing does in a local folder, before anything is written there."""

from __future__ import annotations

import os
import secrets
import time
import unicodedata
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkonce.errors import PreflightError
from sparkonce.sinks.files.names import ID, STALE_S, TEMPORARY
from sparkonce.storage.local import sync_folder

if TYPE_CHECKING:
    from pathlib import Path


def check(root: Path, held: Path) -> str:
    """Makes the folder if it is missing, tries what publishing does, and returns the folder's id.

    Raises:
        PreflightError: naming the setting and its value.
    """
    above = next(folder for folder in (root, *root.parents) if folder.exists())
    if not above.is_dir():
        raise PreflightError(
            f"path={str(root)!r} needs a folder, and {above} is a file.",
            next_step="Name another folder, or move that file away.",
            setting="path",
        )
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        held.mkdir(parents=True, exist_ok=True)
        # What a slot has prepared is durable only if the names of all folders above it are.
        for folder in (held.parent, root, *(one.parent for one in missing)):
            sync_folder(folder)
        _delete_stale(held, held.parent)
        probe = held / f"probe-{secrets.token_hex(6)}"
        second = held.parent / probe.name
        beside = root / f".{probe.name}"
        probe.touch(exist_ok=False)
        try:
            _try_link(root, probe, beside, second)
        finally:
            for path in (probe, second, beside):
                path.unlink(missing_ok=True)
        return _identity(root / ID)
    except OSError as error:
        raise PreflightError(
            f"path={str(root)!r} cannot be written to: {error.strerror} ({error.filename}).",
            next_step="Give this user the permission to write there, or name another folder.",
            setting="path",
        ) from error


def _delete_stale(*folders: Path) -> None:
    with suppress(OSError):  # it may be another user's, and a start can do without
        for path in (path for folder in folders for path in folder.iterdir() if TEMPORARY.fullmatch(path.name)):
            if time.time() - path.stat().st_mtime > STALE_S:
                path.unlink()


def _try_link(root: Path, probe: Path, *seconds: Path) -> None:
    for second in seconds:
        try:
            os.link(probe, second)
        except OSError as error:  # noqa: PERF203 - two rounds, at a start
            raise PreflightError(
                f"path={str(root)!r} is on a file system that gives a file no second name: link() from "
                f"{probe} to {second} fails with {error.strerror!r}.",
                next_step="Use a file system with hard links, whose folder has no mount points inside, or S3 or "
                "HDFS by their own addresses.",
                setting="path",
            ) from error


def _identity(path: Path) -> str:
    """Returns the id that tells this folder from another at the same path. The first start makes it."""
    if not path.exists():
        temporary = path.with_name(f"id-{secrets.token_hex(6)}")
        write_durably(temporary, uuid.uuid4().hex.encode())
        with suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    sync_folder(path.parent)  # always: its maker may have been killed before it was durable
    return path.read_text().strip()  # an editor may have put it back


def folds_names(root: Path) -> bool:
    """Returns whether two names that differ in case, or in how an accent is written, are one here."""
    probe = root / f".probe-{secrets.token_hex(6)}-\N{LATIN SMALL LETTER E WITH ACUTE}"
    probe.touch(exist_ok=False)
    try:
        others = (probe.name.upper(), unicodedata.normalize("NFD", probe.name))
        return any(os.path.lexists(root / other) for other in others)
    finally:
        probe.unlink(missing_ok=True)


def write_durably(path: Path, content: bytes) -> None:
    """Writes a new file whose content is on the disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
