"""Hand-written wrong rules from `rules.txt`. Each rule replaces text in files of the product.

The model, the simulation and the verifier each have to detect the rules that they list. ``dev.py mutants`` runs all
rules against every harness. A rule is one line that describes it, followed by other rules that it includes (``&``) and
by its changes. A change names a file below ``src/sparkonce`` or a package's ``src``, followed by ``old => new``, or by
the old lines behind ``-`` and the new lines behind ``+``. The old text has to occur in its file exactly once, or as
often as a number after the file says (``x2``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Change:
    """A piece of text in a file, and its replacement."""

    file: str
    often: int
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)

    def made(self, text: str) -> str:
        """Returns the text of a file with the change applied.

        Raises:
            KeyError: If the old text does not occur as often as expected.
        """
        old = "\n".join(self.old)
        if text.count(old) != self.often:
            raise KeyError(f"{self.file} has {text.count(old)} times {old!r}: correct tests/mutants/rules.txt")
        return text.replace(old, "\n".join(self.new))


def _read() -> dict[str, list[Change]]:
    rules: dict[str, list[Change]] = {}
    changes: list[Change] = []
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        if line.startswith("    & "):
            changes += rules[line[6:]]
        elif line.startswith("    "):
            place, _, change = line.strip().partition(": ")
            file, _, often = place.partition(" x")
            changes.append(Change(file, int(often or 1), *([part] for part in change.split(" => ") if change)))
        elif line.startswith("-"):
            changes[-1].old.append(line[1:])
        elif line.startswith("+"):
            changes[-1].new.append(line[1:])
        elif line and not line.startswith("#"):
            changes = rules[line] = []
    return rules


RULES: Mapping[str, Sequence[Change]] = _read()
