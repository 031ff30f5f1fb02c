"""The live page's looks at checkpoints and systems: each waits for nobody but itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from eventually import eventually
from page_scene import PageScene, many, now_ms
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.errors import PreflightError
from sparkonce.operate.systems import Kind, NamedSystem, OperatorFile
from sparkonce.page.alarms import SILENT_S, alarms_of
from sparkonce.page.watcher import PageWatcher
from sparkonce.protocol.ownership import short_query
from sparkonce.sinks._shared.orphans import Orphan

LIMIT_S = 60


@pytest.fixture
def scene(tmp_path: Path) -> PageScene:
    made = PageScene(tmp_path / "totals")
    made.write(many(5, now_ms()))
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(NamedSystem):
    """A system that answers as a test wants."""

    answer: Callable[[], list[Orphan]] = field(compare=False)

    def list_open(self) -> list[Orphan]:
        return self.answer()


class Gated(LocalFiles):
    """A store that answers once its gate is open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gate, self.asked = threading.Event(), threading.Event()

    def names(self, folder: str) -> Sequence[str]:
        self.asked.set()
        self.gate.wait(LIMIT_S)
        return super().names(folder)


def mine(scene: PageScene) -> Orphan:
    name = f"shop.{short_query(scene.query)}.{scene.run}.3.0.aaaa"
    query = short_query(scene.query)
    return Orphan(kind="open", name=name, query=query, run=scene.run, batch=3, slot=0, copy="aaaa", age_s=1, holds=())


@contextmanager
def watching(
    files: LocalFiles, answer: Callable[[], list[Orphan]], clock: Callable[[], int] = now_ms
) -> Iterator[PageWatcher]:
    file = OperatorFile(
        path="s.yaml", systems={"shop": Asked(name="shop", kind=Kind.MYSQL, settings={}, answer=answer)}, sinks={}
    )
    watcher = PageWatcher({"totals": files}, file, now_ms=clock, checkpoints_every_s=0.05, systems_every_s=0.05)
    try:
        yield watcher
    finally:
        watcher.close()


def test_a_verdict_waits_for_a_log_that_was_not_read_yet(scene: PageScene) -> None:
    files, listed = Gated(scene.path), threading.Event()

    def answer() -> list[Orphan]:
        listed.set()
        return [mine(scene)]

    with watching(files, answer) as watcher:
        watcher.state()
        assert listed.wait(LIMIT_S)
        assert files.asked.wait(LIMIT_S)
        assert watcher.state().systems[0].open == []
        files.gate.set()
        shown = eventually(lambda: watcher.state().systems[0].open, "it is listed", limit_s=LIMIT_S)
        assert [one.verdict for one in shown] == ["under way"]


def test_a_system_that_hangs_blocks_nothing_and_is_an_alarm(scene: PageScene) -> None:
    asked, release, ms = threading.Event(), threading.Event(), [now_ms()]

    def answer() -> list[Orphan]:
        asked.set()
        release.wait(LIMIT_S)
        return []

    with watching(LocalFiles(scene.path), answer, lambda: ms[0]) as watcher:
        watcher.state()
        assert asked.wait(LIMIT_S)
        eventually(lambda: watcher.state().queries[0].read_ms, "the checkpoint is read", limit_s=LIMIT_S)
        assert alarms_of(watcher.state()) == []
        ms[0] += int(SILENT_S * 1000) + 1000
        eventually(lambda: [one.key for one in alarms_of(watcher.state())] == ["silent shop"], "it is the only alarm")
        release.set()
        eventually(lambda: watcher.state().systems[0].answered_ms, "it has answered", limit_s=LIMIT_S)
        assert alarms_of(watcher.state()) == []


def test_what_was_open_stays_shown_while_its_system_is_away(scene: PageScene) -> None:
    answers: list[list[Orphan] | Exception] = [[mine(scene)]]

    def answer() -> list[Orphan]:
        if isinstance(answers[-1], Exception):
            raise answers[-1]
        return answers[-1]

    with watching(LocalFiles(scene.path), answer) as watcher:
        eventually(lambda: watcher.state().systems[0].open, "it is listed", limit_s=LIMIT_S)
        answers.append(PreflightError("The server is away.", next_step="start it"))
        eventually(lambda: watcher.state().systems[0].error, "it is away", limit_s=LIMIT_S)
        (system,) = watcher.state().systems
        assert (system.error, system.error_step, len(system.open)) == ("The server is away.", "Start it.", 1)
        answers.append(ZeroDivisionError("postgres://u:secret@h"))  # of a client: its words may hold anything
        found = eventually(lambda: (one := watcher.state().systems[0].error).startswith("System") and one, "another",
                           limit_s=LIMIT_S)  # fmt: skip
        assert found == "System 'shop' cannot be asked: ZeroDivisionError."
        answers.append([])
        eventually(lambda: not watcher.state().systems[0].error, "it is back", limit_s=LIMIT_S)
        assert watcher.state().systems[0].open == []


def test_nothing_is_read_before_somebody_looks(scene: PageScene) -> None:
    def looks() -> int:
        return sum(one.name == "sparkonce-page" for one in threading.enumerate())

    before = looks()
    with watching(LocalFiles(scene.path), list) as watcher:
        assert looks() == before
        watcher.state()
        eventually(lambda: watcher.state().queries[0].read_ms, "the checkpoint is read", limit_s=LIMIT_S)
        assert looks() == before + 2
    eventually(lambda: looks() <= before, "the looks end", limit_s=LIMIT_S)
