"""Wrong rules of rows that are refused: that accepted and refused ones together are the input is at stake."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from simulation.config import REFUSING
from simulation.mutants import Mutant
from sparkonce.executor import _Part
from sparkonce.sink import Refused


def _forgets_letters(self: _Part, sink: str, rows: Any, reasons: Sequence[str], hashes: Any) -> None:
    """Drops what was refused."""


def _takes_what_it_refuses(self: _Part, batch: Any, rows: Any) -> Refused:
    refused = self._open().offer(rows)
    if refused.rows:
        self._open().write(rows.take(refused.rows))
    return refused


def _writes_always(self: _Part, sink: str, rows: Any, reasons: Sequence[str], hashes: Any) -> None:
    kept, self._is_kept = self._is_kept, True
    _RECEIVE(self, sink, rows, reasons, hashes)
    self._is_kept = kept or self._writer is not None


_RECEIVE = _Part.receive


def _only_counts(self: _Part, rows: int, hashes: Any) -> None:
    self._rows += rows


_mutant = partial(Mutant, family="letters", kinds=REFUSING)

LETTERS_MUTANTS: Sequence[Mutant] = (
    _mutant(name="dead letters: what is refused is dropped", patches=((_Part, "receive", _forgets_letters),)),
    _mutant(name="dead letters: what is refused is written, too", patches=((_Part, "_offer", _takes_what_it_refuses),)),
    _mutant(
        name="dead letters: they are written again whenever a batch is healed",
        patches=((_Part, "receive", _writes_always),),
    ),
    _mutant(
        name="dead letters: the evidence of a slot does not tell which rows it took",
        patches=((_Part, "_count", _only_counts),),
    ),
)
