"""A separate disk for a folder, small enough to be filled, on machines that allow mounting."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_FULL_WITHIN_S = 10.0


@functools.cache
def cannot_mount() -> str:
    """Returns why a small disk cannot be mounted on this machine; empty if it can."""
    if not sys.platform.startswith("linux") or not shutil.which("mount"):
        return "no mount program"
    with tempfile.TemporaryDirectory() as folder:
        tried = _mount(Path(folder), 1)
        if tried.returncode:
            return f"mount is not allowed: {tried.stderr.strip()}"
        _unmount(Path(folder))
    return ""


def affordable(megabytes: int) -> int:
    """Returns this size in megabytes, or half of the available memory if that is less."""
    found = re.search(r"^MemAvailable: *([0-9]+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return megabytes if found is None else min(megabytes, int(found[1]) // 2048)


class SmallDisk:
    """Provides a folder on a separate disk of this size, which can be filled, or a plain one if `is_small` is False.

    The disk is in memory, and uses only as much memory as is written.
    """

    def __init__(self, folder: Path, megabytes: int = 8) -> None:
        self.folder = folder
        self._megabytes = megabytes
        folder.mkdir(parents=True)
        self.is_small = not cannot_mount()
        if self.is_small:
            _mount(folder, megabytes).check_returncode()

    def fill(self) -> None:
        """Fills the disk by shrinking it to the size of its contents, or to one page if it is empty.

        Raises:
            TimeoutError: If other processes keep writing to the disk.
        """
        give_up_at = time.monotonic() + _FULL_WITHIN_S
        while True:
            room = os.statvfs(self.folder)
            used = max(1, room.f_blocks - room.f_bfree) * room.f_frsize  # A size of 0 would mean unlimited.
            if _resize(self.folder, str(used)).returncode == 0:
                return
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"{self.folder} could not be filled within {_FULL_WITHIN_S:g} s")

    def free(self) -> None:
        _resize(self.folder, f"{self._megabytes}m").check_returncode()

    def close(self) -> None:
        """Removes the disk with everything on it."""
        if self.is_small:
            _unmount(self.folder)


def _mount(folder: Path, megabytes: int) -> subprocess.CompletedProcess[str]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _resize(folder: Path, size: str) -> subprocess.CompletedProcess[str]:
    command = ["mount", "-o", f"remount,size={size}", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)
