"""The location of the checkpoint and the decision log: a local disk, or the user's own store."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparkonce.decision_log import FOLDER
from sparkonce.errors import ConfigurationError
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.location import OBJECT_STORES
from sparkonce.storage.opening import open_location
from sparkonce_lab.rig.disk import SmallDisk
from sparkonce_lab.rig.kafka.jars import spark_s3a_class_path

QUERY = "query"
"""The checkpoint's name on its disk."""
_MEGABYTES = 512
_ABOUT_BATCHES = ("", "offsets", "commits", f"{FOLDER}/records", f"{FOLDER}/floors")
_HADOOP = "spark.hadoop."
_CLASS_PATHS = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")
_PACKAGES = "spark.jars.packages"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """A query's checkpoint, with its disk if that can be filled."""

    files: CheckpointFiles
    disk: SmallDisk | None = None


def open_store(location: str, conf: Mapping[str, str]) -> CheckpointFiles:
    """Opens the files of a folder, using Spark's settings as Spark would.

    Raises:
        ConfigurationError: If a checkpoint cannot be in this location, or a setting has no counterpart.
    """
    hadoop = {name.removeprefix(_HADOOP): value for name, value in conf.items() if name.startswith(_HADOOP)}
    return open_location(location, hadoop)


def with_connector(location: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Returns Spark's settings, extended by the classes of a store's connector. For S3, downloads S3A.

    Raises:
        ConfigurationError: If the store needs a different connector, and no setting names it.
        PreflightError: If S3A cannot be downloaded.
    """
    scheme = location.partition(":")[0]
    if scheme not in OBJECT_STORES or _PACKAGES in conf or _CLASS_PATHS[0] in conf:
        return dict(conf)
    if scheme != "s3a":
        raise ConfigurationError(
            f"--checkpoint {location}: Spark needs the connector of {scheme}: for that.",
            next_step=f"Name it with --conf {_PACKAGES}=….",
        )
    return {**conf, **dict.fromkeys(_CLASS_PATHS, spark_s3a_class_path())}


def check_store(files: CheckpointFiles) -> None:
    """Checks that files can be put into the user's store; raises ConfigurationError if they cannot."""
    try:
        files.check()
    except OSError as error:
        raise ConfigurationError(
            f"--checkpoint {files.location} cannot be reached: {error.strerror}.",
            next_step="Give its store's settings with --conf: see docs/checkpoints.md.",
        ) from error


def new_folder(location: str, purpose: str) -> str:
    """Returns the location of a new folder, with a unique name, inside another one."""
    return f"{location.rstrip('/')}/sparkonce-{purpose}-{secrets.token_hex(5)}"


@contextmanager
def checkpoint_disk(folder: Path, say: Callable[[str], None]) -> Iterator[StoredCheckpoint]:
    """Creates a disk for the checkpoint and the log, in a new folder.

    When the disk is removed, the folder keeps what checkpoint and log contain about batches (decisions, offsets and
    commits, but not the state).
    """
    disk = SmallDisk(folder, _MEGABYTES)
    files = LocalFiles(folder / QUERY)
    try:
        yield StoredCheckpoint(files=files, disk=disk if disk.is_small else None)
    finally:
        copy = folder.with_name(f"{folder.name}-kept")
        try:
            if disk.is_small:
                _keep(files, copy, say)
        finally:
            disk.close()
        if copy.is_dir():
            copy.rename(folder / QUERY)


@contextmanager
def checkpoint_away(files: CheckpointFiles, folder: Path, say: Callable[[str], None]) -> Iterator[StoredCheckpoint]:
    """Checks the user's own store. At the end, copies what checkpoint and log contain about batches to a new folder.

    The checkpoint itself is not removed.
    """
    check_store(files)
    try:
        yield StoredCheckpoint(files=files)
    finally:
        folder.mkdir()
        _keep(files, folder / QUERY, say)
        say(f"the checkpoint stays in {files.location}; delete it when you no longer need it")


def _keep(files: CheckpointFiles, to: Path, say: Callable[[str], None]) -> None:
    try:
        keep_logs(files, to)
    except OSError as error:
        say(f"part of the checkpoint could not be kept: {error}")


def keep_logs(checkpoint: CheckpointFiles, to: Path) -> None:
    """Copies what a checkpoint contains about its batches into a new folder.

    Raises:
        OSError: If something could not be copied. Everything else is still copied.
    """
    to.mkdir()
    failed = []
    for folder in _ABOUT_BATCHES:
        try:
            names = checkpoint.names(folder)
        except OSError as error:
            failed.append(f"{folder}: {error}")
            continue
        (to / folder).mkdir(parents=True, exist_ok=True)
        for path in (f"{folder}/{name}".lstrip("/") for name in names):
            try:
                (to / path).write_bytes(checkpoint.read(path) or b"")
            except OSError as error:  # noqa: PERF203 - the other files are still copied
                failed.append(f"{path}: {error}")
    if failed:
        raise OSError("; ".join(failed))
