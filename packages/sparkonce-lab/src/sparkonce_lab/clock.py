"""A clock that can be set for one driver, in Python and in its JVM, where libfaketime is installed."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from pathlib import Path
from typing import SupportsIndex

_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib")
_LIBRARY = "faketime/libfaketimeMT.so.1"
SEEN_WITHIN_S = 1.1
_FILE = "FAKETIME_TIMESTAMP_FILE"
_MONOTONIC_GOES_ON = "FAKETIME_DONT_FAKE_MONOTONIC"


def find_faketime() -> Path | None:
    """Finds the library, None if it is not installed (Debian: ``apt install libfaketime``)."""
    for folder in _FOLDERS:
        for found in (Path(folder, _LIBRARY), *sorted(Path(folder).glob(f"*/{_LIBRARY}"))):
            if found.exists():
                return found
    return None


def adapt_python() -> None:
    """Makes this process work where its clock is a `FakeClock`; does nothing elsewhere.

    `time.sleep` (from 3.11 on) asks clock_nanosleep for an instant of the monotonic clock, of which libfaketime up to
    0.9.10 makes one before 1970, if that clock is to go on (wolfcw/libfaketime#426).
    """

    def sleep(seconds: float | SupportsIndex) -> None:
        select.select((), (), (), float(seconds))

    if _FILE in os.environ:
        time.sleep = sleep


def let_java_start() -> None:
    """Prepares such a process for a JVM that is started from it.

    Where the monotonic clock is to go on, every wait of a JVM ends at once with libfaketime 0.9.10, and it comes to
    nothing. So in a JVM both clocks jump, as they may in a machine that was suspended.
    """
    os.environ.pop(_MONOTONIC_GOES_ON, None)


def only_the_drivers() -> Mapping[str, str]:
    """Returns Spark's settings for a query in such a process: Python workers and executors keep the true clock.

    In them it could not be told from what libfaketime 0.9.10 does: librdkafka asks the faked clock until when to wait,
    and waits by glibc's ``cnd_timedwait``, which is not faked. After a jump by an hour each wait took an hour more.
    """
    return {"spark.executorEnv.LD_PRELOAD": ""} if _FILE in os.environ else {}


class FakeClock:
    """A driver's time that jumps: wall-clock time in Python, and in its JVM all of it.

    Args:
        library: See `find_faketime`.
        file: Says by how much; is written.
        seconds: By how much it is wrong from the start.
    """

    def __init__(self, library: Path, file: Path, seconds: int = 0) -> None:
        self._library = library
        self._file = file
        self.jump(seconds)

    def env(self) -> Mapping[str, str]:
        """Returns the environment of the Python process whose clock it is. libfaketime's README has the names."""
        return {
            "LD_PRELOAD": str(self._library),
            _FILE: str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            _MONOTONIC_GOES_ON: "1",
        }

    def jump(self, seconds: int) -> None:
        """Sets it so many seconds before or behind the true one, seen within `SEEN_WITHIN_S`."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)
