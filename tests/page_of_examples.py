"""The rows of `docs/every-example.md`, each with the command that shows it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "every-example.md"
_ROW = re.compile(r"^\| .* \| .* \| `(?P<command>[^`]+)` \| (?P<who>[^|]+) \|$", re.MULTILINE)
ROWS = [(row["command"], row["who"]) for row in _ROW.finditer(PAGE.read_text())]
"""Each command, and who runs it."""
