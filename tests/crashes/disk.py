"""A disk of its own for a folder, small enough to be filled, where mounting is allowed."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_BALLAST = "ballast"


@functools.cache
def cannot_mount() -> str:
    """Why no small disk can be had here; empty if one can."""
    if not sys.platform.startswith("linux") or not shutil.which("mount"):
        return "no mount program"
    with tempfile.TemporaryDirectory() as folder:
        tried = _mount(Path(folder), 1)
        if tried.returncode:
            return f"mount is not allowed: {tried.stderr.strip()}"
        _unmount(Path(folder))
    return ""


class SmallDisk:
    """A folder, on a disk of its own if that can be had.

    Args:
        folder: Is made.
        megabytes: Its size.
    """

    def __init__(self, folder: Path, megabytes: int = 8) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.is_small = not cannot_mount()
        if self.is_small:
            _mount(folder, megabytes).check_returncode()

    def fill(self) -> None:
        """Leaves not a byte free."""
        with (self.folder / _BALLAST).open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                with suppress(OSError):  # that is the aim
                    while file.write(bytes(size)):
                        pass

    def free(self) -> None:
        """Makes room again."""
        (self.folder / _BALLAST).unlink(missing_ok=True)

    def close(self) -> None:
        if self.is_small:
            _unmount(self.folder)


def _mount(folder: Path, megabytes: int) -> subprocess.CompletedProcess[str]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)
