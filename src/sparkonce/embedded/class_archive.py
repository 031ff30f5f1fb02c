"""An archive of Kafka's classes, read and verified once: a node that uses it is up in half the time (JEP 350)."""

from __future__ import annotations

import hashlib
import logging
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.embedded.jars import cache_folder, file_lock, find_java, kafka_jars
from sparkonce.errors import SparkonceError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("sparkonce")

_LIMIT_S = 120.0
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""A JVM that an archive does not fit goes without, and need not say so."""


def archive_of(version: str) -> Path:
    """Returns where the archive for this Kafka and this Java is kept."""
    java = Path(find_java()).resolve()
    stands = java.stat()
    made_for = f"{java} {stands.st_size} {stands.st_mtime_ns} {kafka_jars(version)}"
    return cache_folder() / "classes" / f"kafka-{version}-{hashlib.sha256(made_for.encode()).hexdigest()[:12]}.jsa"


def archive_flags(version: str, run: Callable[[str], None]) -> tuple[str, ...]:
    """Returns the flags of a JVM that uses the archive, which is made first if there is none.

    It only saves time: where it cannot be made there are no flags, and that is noted so that nobody tries again.

    Args:
        version: Kafka's version.
        run: Starts a node with a JVM flag that it is given, and ends it in order.

    Raises:
        ConfigurationError: if Java is missing.
        PreflightError: if Kafka cannot be fetched.
    """
    kept = archive_of(version)
    with file_lock(kept.with_suffix(".lock"), time.monotonic() + _LIMIT_S):
        if not kept.exists():
            _make(kept, run)
    return (f"-XX:SharedArchiveFile={kept}", *_QUIET) if kept.stat().st_size else ()


def _make(kept: Path, run: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".making-") as folder:
        new = Path(folder, kept.name)
        try:
            run(f"-XX:ArchiveClassesAtExit={new}")
        except SparkonceError as error:
            log.debug("no archive of Kafka's classes: %s", error)
        if not new.exists():
            new.touch()
        new.rename(kept)
