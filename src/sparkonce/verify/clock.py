"""A clock that can be set for one driver and all of its processes, where libfaketime is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib")
_LIBRARY = "faketime/libfaketimeMT.so.1"
SEEN_WITHIN_S = 1.1


def find_faketime() -> Path | None:
    """Where the library is, None if it is not installed (Debian: ``apt install libfaketime``)."""
    for folder in _FOLDERS:
        for found in (Path(folder, _LIBRARY), *sorted(Path(folder).glob(f"*/{_LIBRARY}"))):
            if found.exists():
                return found
    return None


class FakeClock:
    """Wall-clock time that jumps, with a monotonic clock that goes on: what a wrong time server does to a machine.

    Args:
        library: See `find_faketime`.
        file: Says by how much; is written.
    """

    def __init__(self, library: Path, file: Path) -> None:
        self._library = library
        self._file = file
        self.jump(0)

    def env(self) -> Mapping[str, str]:
        """For the processes whose clock it is. See libfaketime's README for the names."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def jump(self, seconds: int) -> None:
        """Sets it so many seconds forward or back, seen within `SEEN_WITHIN_S`."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)
