"""The files of a client's TLS settings. Python's `ssl` says that a file is missing, and not which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def see_files(settings: Mapping[str, Any], names: Iterable[str]) -> None:
    """Opens each file that a setting names.

    Raises:
        OSError: naming the setting and the file that cannot be read.
    """
    for name in names:
        if path := settings.get(name):
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as error:
                raise type(error)(error.errno, f"{name}={str(path)!r}: {error.strerror}") from None
