"""A folder that the files sink writes to, asked by listing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sparkonce.testing.systems.base import Witness

if TYPE_CHECKING:
    from sparkonce.rig.proxy import Request

_HELD = Path(".sparkonce") / "held"


class FilesWitness(Witness):
    """A local folder.

    Args:
        root: The folder.
    """

    requests: ClassVar[Mapping[str, Mapping[str, Request]]] = {}

    def __init__(self, root: Path) -> None:
        self.root = root

    def published(self) -> list[Path]:
        """Lists the files that a reader of such folders takes: no part of their path begins with ``.`` or ``_``."""
        found = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(path for path in found if not any(part[0] in "._" for part in path.relative_to(self.root).parts))

    def left_open(self) -> Sequence[str]:
        """See `Witness.left_open`: files that are held back."""
        return sorted(str(path) for path in (self.root / _HELD).rglob("*") if path.is_file())

    def close(self) -> None:
        """See `Witness.close`. A folder needs no connection."""
