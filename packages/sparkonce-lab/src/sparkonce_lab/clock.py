"""A clock that can be set for one driver, in Python and in its JVM, if libfaketime is installed."""

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
    """Finds the library libfaketime; None if it is not installed (Debian: ``apt install libfaketime``)."""
    for folder in _FOLDERS:
        for found in (Path(folder, _LIBRARY), *sorted(Path(folder).glob(f"*/{_LIBRARY}"))):
            if found.exists():
                return found
    return None


def adapt_python() -> None:
    """Prepares this process for a `FakeClock`. Does nothing if its clock is real.

    `time.sleep` (since 3.11) passes a time on the monotonic clock to clock_nanosleep. If that clock is not faked,
    libfaketime up to 0.9.10 converts the time to one before 1970 (wolfcw/libfaketime#426).
    """

    def sleep(seconds: float | SupportsIndex) -> None:
        select.select((), (), (), float(seconds))

    if _FILE in os.environ:
        time.sleep = sleep


def let_java_start() -> None:
    """Prepares a process with a fake clock for starting a JVM.

    With libfaketime 0.9.10, every wait in a JVM ends immediately if the monotonic clock is not faked, so no JVM works.
    Both clocks of a JVM therefore jump, as they may after a machine was suspended.
    """
    os.environ.pop(_MONOTONIC_GOES_ON, None)


def only_the_drivers() -> Mapping[str, str]:
    """Returns Spark's settings for a query with a fake clock: Python workers and executors keep the real clock.

    With a fake clock, their problems could not be distinguished from those of libfaketime 0.9.10: librdkafka computes
    the end of a wait with the fake clock, but waits with glibc's ``cnd_timedwait``, which is not faked. After a jump of
    an hour, each wait would take an hour longer.
    """
    return {"spark.executorEnv.LD_PRELOAD": ""} if _FILE in os.environ else {}


class FakeClock:
    """A clock of a driver that jumps: the wall clock in Python, and all clocks in the driver's JVM."""

    def __init__(self, library: Path, file: Path, seconds: int = 0) -> None:
        self._library = library
        self._file = file
        self.jump(seconds)

    def env(self) -> Mapping[str, str]:
        """Returns the environment of the Python process with this clock, with names from libfaketime's README."""
        return {
            "LD_PRELOAD": str(self._library),
            _FILE: str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            _MONOTONIC_GOES_ON: "1",
        }

    def jump(self, seconds: int) -> None:
        """Sets the clock to an offset from the real time, in seconds. Takes effect within `SEEN_WITHIN_S`."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)
