"""An archive of a program's classes, read and verified once: a broker with one is up in little more than half the time.

See JEP 350. The archive only saves time: where it cannot be made or read, the program starts without it.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.errors import SparkonceError
from sparkonce.operate.java import find_java
from sparkonce_lab.rig.kafka.jars import cache_folder, file_lock, kafka_jars

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("sparkonce")

_LIMIT_S = 240.0
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""A JVM that an archive does not fit goes without, and need not say so."""


def kafka_archive(version: str) -> Path:
    """Returns where the archive for this Kafka and this Java is kept."""
    java = Path(find_java()).resolve()
    found = java.stat()
    made_for = f"{java} {found.st_size} {found.st_mtime_ns} {kafka_jars(version)}"
    return cache_folder() / "classes" / f"kafka-{version}-{hashlib.sha256(made_for.encode()).hexdigest()[:12]}.jsa"


def archive_flags(kept: Path, run: Callable[[str], None]) -> tuple[str, ...]:
    """Returns the flags of a JVM that uses the archive, which is made first if there is none.

    Args:
        kept: The archive.
        run: Starts the program with a JVM flag that it is given, and ends it in order. Raises if it cannot.
    """
    try:
        if not kept.exists():
            with file_lock(kept.with_suffix(".lock"), time.monotonic() + _LIMIT_S):
                if not kept.exists():
                    _make(kept, run)
        is_made = kept.stat().st_size > 0
    except (OSError, SparkonceError) as error:
        log.warning("%s cannot be made or read: the JVM starts without it, which takes longer: %s", kept, error)
        return ()
    return (f"-XX:SharedArchiveFile={kept}", *_QUIET) if is_made else ()


def _make(kept: Path, run: Callable[[str], None]) -> None:
    """Makes it. Where the JVM ends in order and makes none, an empty file notes that it never will."""
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".making-") as folder:
        new = Path(folder, kept.name)
        run(f"-XX:ArchiveClassesAtExit={new}")
        new.touch()
        new.rename(kept)
