"""Targets that are up, one at a time, each with a query that lives on from cell to cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crashes.cells import Cell
from crashes.life import Life, Verdict
from crashes.target import Target
from crashes.zygote import Zygote


class Stages:
    """Keeps one target up.

    Args:
        folder: A new one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._target: Target | None = None
        self._zygotes: dict[Sequence[str], Zygote] = {}
        self._life: Life | None = None

    def strike(self, target: Target, cell: Cell) -> Verdict:
        """Carries out a cell in the life that the target's query leads, or in a new one."""
        life = self._life_of(target)
        # A cell that goes wrong ends the life: what it left must not be laid at the next one's door.
        self._life = None
        try:
            verdict = life.strike(cell)
            if not verdict.violations and not verdict.missed:
                self._life = life
            return verdict
        finally:
            if self._life is None:
                life.close()

    def _life_of(self, target: Target) -> Life:
        if self._target is not target:
            self._leave()
            self._target = target
            target.start(self._new_folder(target.name))
        if self._life is None:
            self._life = Life(target, self._zygote_of(target), self._new_folder("life"))
        return self._life

    def _zygote_of(self, target: Target) -> Zygote:
        preload = ("pandas", "crashes.child", type(target).__module__, *target.preload)
        if preload not in self._zygotes:
            self._zygotes[preload] = Zygote(preload, self._new_folder("zygote").with_suffix(".log"))
        return self._zygotes[preload]

    def _new_folder(self, name: str) -> Path:
        self._number += 1
        return self._folder / f"{name}-{self._number}"

    def _leave(self) -> None:
        life, target = self._life, self._target
        self._life = self._target = None
        if life is not None:
            life.close()
        if target is not None:
            target.stop()

    def close(self) -> None:
        self._leave()
        for zygote in self._zygotes.values():
            zygote.close()

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
