"""An operator's run ends transactions of a query that died at any point, and the query then continues correctly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkonce.decision_log import DecisionLog
from sparkonce.driver.run import RunDriver
from sparkonce.driver.start import read_log
from sparkonce.errors import ConfigurationError, PreflightError, RefusedBatchError, SupersededError, UnknownOutcomeError
from sparkonce.operate import resolve as resolving
from sparkonce.operate.checkpoint import read_checkpoint
from sparkonce.operate.resolve import Resolved, resolve
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import LogView, Run
from sparkonce.sink import Facts
from sparkonce.sinks.memory import MemorySink
from sparkonce.sinks.memory.server import TransactionState, reply_lost
from sparkonce.storage.local import LocalFiles
from unit.driver_world import QUERY, SLOTS, World, numbers

BATCH = 1
DECIDED = (Phase.FINISHING, Phase.SWEEPING_OWN, Phase.CONCLUDING)


class Scene(World):
    """A world with Spark's own files, whose query has committed batch 0."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "metadata").write_text(json.dumps({"id": QUERY}))
        self.plan(0)
        self.run(self.start(), 0)
        self.done(0)

    def plan(self, batch: int) -> None:
        self._put("offsets", batch, f'v1\n{{}}\n{{"t":{{"0":{batch}}}}}')

    def done(self, batch: int) -> None:
        self._put("commits", batch, "v1\n{}")

    def _put(self, log: str, batch: int, text: str) -> None:
        (self.checkpoint / log).mkdir(exist_ok=True)
        (self.checkpoint / log / str(batch)).write_text(text)

    def die_at(self, phase: Phase) -> None:
        self.plan(BATCH)
        self.crash(BATCH, phase)

    def resolve(self, folder: Path | None = None, **how: bool) -> Resolved:
        return resolve(LocalFiles(folder or self.checkpoint), self.sinks(), patience_s=0.0, **how)

    def view(self) -> LogView:
        return read_log(DecisionLog(LocalFiles(self.checkpoint)))

    def newest(self) -> Run:
        return self.view().newest_run

    def go_on(self) -> list[int]:
        driver = self.start()
        for batch in (BATCH, BATCH + 1):
            self.plan(batch)
            self.run(driver, batch)
            self.done(batch)
        return self.visible()


@pytest.fixture
def scene(tmp_path) -> Scene:
    return Scene(tmp_path)


def test_more_cannot_be_accepted_than_is_finished_and_nothing_is_claimed(scene):
    scene.die_at(Phase.FINISHING)
    before = read_log(DecisionLog(LocalFiles(scene.checkpoint))).end
    with pytest.raises(ConfigurationError, match="batch 1 is next"):
        resolve(LocalFiles(scene.checkpoint), scene.sinks(), accept_lost={next(iter(scene.sinks())): BATCH})
    assert read_log(DecisionLog(LocalFiles(scene.checkpoint))).end == before


@pytest.mark.parametrize(
    "phase", [*DECIDED, *(Phase.CLAIMING, Phase.SWEEPING, Phase.WRITING, Phase.VALIDATING, Phase.DECIDING)]
)
def test_all_ends_and_the_query_goes_on(scene, phase):
    scene.die_at(phase)
    done = scene.resolve()
    decided = phase in DECIDED
    assert (done.batch, done.committed, done.lost) == ((BATCH, SLOTS, 0) if decided else (None, 0, 0))
    assert (done.swept, done.is_all) == (("memory",), True)
    assert scene.unfinished() == []
    assert scene.visible() == (numbers(0, BATCH) if decided else numbers(0))
    assert scene.go_on() == numbers(0, BATCH, BATCH + 1)


def test_it_may_be_done_again_and_again(scene):
    scene.die_at(Phase.FINISHING)
    assert "An operator's command" not in read_checkpoint(LocalFiles(scene.checkpoint)).says
    assert [scene.resolve().batch for _ in range(3)] == [BATCH] * 3
    assert "An operator's command has ended its transactions" in read_checkpoint(LocalFiles(scene.checkpoint)).says
    assert scene.visible() == numbers(0, BATCH)
    scene.done(BATCH)
    assert [scene.resolve().batch for _ in range(2)] == [None] * 2
    assert scene.go_on() == numbers(0, BATCH, BATCH + 1)


@pytest.mark.parametrize("lost", [1, SLOTS])
def test_what_is_lost_is_told_and_left_to_the_query(scene, lost):
    scene.die_at(Phase.FINISHING)
    prepared = [number for number, state in scene.server.transactions().items() if state is TransactionState.PREPARED]
    for number in prepared[:lost]:
        scene.server.expire(number)
    done = scene.resolve()
    assert (done.batch, done.committed, done.lost) == (BATCH, SLOTS - lost, lost)
    assert (done.swept, done.is_all) == ((), False)
    assert scene.go_on() == numbers(0, BATCH, BATCH + 1)


def test_a_copy_is_refused_and_one_that_was_moved_keeps_its_place_in_the_log(scene, tmp_path):
    scene.die_at(Phase.FINISHING)
    before, copy = scene.view(), tmp_path.parent / f"{tmp_path.name}-copy"
    shutil.copytree(tmp_path, copy)
    with pytest.raises(RefusedBatchError, match="was last used at"):
        scene.resolve(copy)
    assert scene.unfinished() != []
    assert scene.resolve(copy, moved=True).committed == SLOTS
    assert read_log(DecisionLog(LocalFiles(copy))).newest_run.location == scene.newest().location
    assert scene.view() == before


def test_a_batch_that_spark_has_not_kept_is_committed_as_it_was_decided(scene):
    scene.die_at(Phase.FINISHING)
    (scene.checkpoint / "offsets" / str(BATCH)).unlink()
    assert scene.resolve().committed == SLOTS
    assert scene.visible() == numbers(0, BATCH)


def refused_before_the_claim(scene: Scene, call: Callable[[], object], said: str) -> None:
    before, open_ones = scene.view(), scene.unfinished()
    with pytest.raises((ConfigurationError, PreflightError), match=said):
        call()
    assert (scene.view(), scene.unfinished()) == (before, open_ones)


def test_what_cannot_be_ended_is_refused_before_the_claim(scene, monkeypatch):
    scene.add("more")
    scene.die_at(Phase.FINISHING)
    files, one = LocalFiles(scene.checkpoint), {"memory": scene.sinks()["memory"]}
    refused_before_the_claim(scene, lambda: resolve(files, one), r"transactions in \['more'\]")
    refused_before_the_claim(scene, lambda: resolve(files, {}), "nothing can be ended")
    monkeypatch.setattr(resolving.os, "geteuid", lambda: 4711)
    refused_before_the_claim(scene, scene.resolve, "could not read a record")


def test_a_folder_without_a_log_is_refused_and_gets_none(tmp_path, scene):
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "metadata").write_text(json.dumps({"id": QUERY}))
    refused_before_the_claim(scene, lambda: scene.resolve(fresh), "has no decision log")
    assert [path.name for path in fresh.iterdir()] == ["metadata"]
    (scene.checkpoint / "metadata").unlink()
    refused_before_the_claim(scene, scene.resolve, "`metadata` is missing")


class Slow(MemorySink):
    def __init__(self, scene: Scene, meanwhile: Callable[[int], object]) -> None:
        super().__init__(scene.server)
        self._meanwhile = meanwhile
        self._checks = 0

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        self._checks += 1
        self._meanwhile(self._checks)
        return super().preflight(query, recorded)


def decide(scene: Scene, driver: RunDriver, batch: int) -> None:
    scene.plan(batch)
    scene.run(driver, batch)
    scene.done(batch)


def test_a_driver_that_goes_on_meanwhile_is_caught_up_with(scene):
    driver = scene.start()
    decide(scene, driver, BATCH)
    slow = Slow(scene, lambda check: decide(scene, driver, BATCH + check))
    done = resolve(LocalFiles(scene.checkpoint), {"memory": slow}, patience_s=0.0)
    assert (done.batch, done.swept) == (None, ("memory",))
    assert scene.visible() == numbers(0, BATCH, BATCH + 1)
    with pytest.raises(SupersededError):
        scene.run(driver, BATCH + 2)


def test_a_query_that_is_claimed_again_and_again_is_told_and_left_alone(scene):
    slow = Slow(scene, lambda check: decide(scene, scene.start(), check))
    with pytest.raises(PreflightError, match=r"keeps advancing: .* 5 times") as refused:
        resolve(LocalFiles(scene.checkpoint), {"memory": slow}, patience_s=0.0)
    assert "Stop its driver" in refused.value.next_step
    assert scene.view().newest_decision.token == scene.newest().token


def test_a_commit_is_told_even_if_the_sweep_after_it_fails(scene):
    scene.die_at(Phase.WRITING)
    scene.die_at(Phase.FINISHING)
    scene.server.begin(scene.server.owners_of(scene.server.transactions())[0])
    scene.server.fail("abort", reply_lost())
    with pytest.raises(UnknownOutcomeError, match=r"Batch 1 is committed\. What older runs left open was not ended"):
        scene.resolve()
    assert scene.visible() == numbers(0, BATCH)
