"""The live page's reads of checkpoints and systems, none of which waits for any other."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from eventually import LIMIT_S, eventually
from integration.kafka_witness import new_name
from page_scene import PageScene, many, now_ms
from sparkonce.errors import PreflightError
from sparkonce.operate.systems import NamedSystem, OperatorFile, SystemKind, read_file
from sparkonce.protocol.ownership import Token, TransactionalId, short_query
from sparkonce.sinks._shared.orphans import Orphan
from sparkonce.storage.local import LocalFiles
from sparkonce.ui.alarms import SILENT_S, alarms_of
from sparkonce.ui.watcher import LOG_WITHIN_S, READ_AGAIN_S, PageWatcher, WatchedCheckpoint


@pytest.fixture
def scene(tmp_path) -> PageScene:
    made = PageScene(tmp_path / "totals")
    made.write(many(5, now_ms()))
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(NamedSystem):
    """A system whose answers the test controls."""

    answer: Callable[[], list[Orphan]] = field(compare=False)

    def list_open(self) -> list[Orphan]:
        return self.answer()


class Gated(LocalFiles):
    """A store that answers once its gate is open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gate, self.asked = threading.Event(), threading.Event()
        self.is_away = False

    def names(self, folder: str) -> Sequence[str]:
        self.asked.set()
        self.gate.wait(LIMIT_S)
        if self.is_away:
            raise OSError("The store is away.")
        return super().names(folder)


def mine(scene: PageScene, copy: str = "aaaa") -> Orphan:
    name = f"shop.{short_query(scene.query)}.{scene.run}.3.0.{copy}"
    query = short_query(scene.query)
    return Orphan(kind="open", name=name, query=query, run=scene.run, batch=3, slot=0, copy=copy, age_s=1, holds=())


@contextmanager
def watching(
    files: LocalFiles | Mapping[str, LocalFiles],
    answer: Callable[[], list[Orphan]],
    clock: Callable[[], int] = now_ms,
    every_s: float = 0.05,
) -> Iterator[PageWatcher]:
    file = OperatorFile(
        path="s.yaml", systems={"shop": Asked(name="shop", kind=SystemKind.MYSQL, settings={}, answer=answer)}, sinks={}
    )
    checkpoints = files if isinstance(files, Mapping) else {"totals": files}
    watcher = PageWatcher(checkpoints, file, now_ms=clock, checkpoints_every_s=every_s, systems_every_s=0.05)
    try:
        yield watcher
    finally:
        watcher.close()


def test_a_verdict_waits_for_a_log_that_was_not_read_yet(scene):
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
        shown = eventually(lambda: watcher.state().systems[0].open, "it is listed")
        assert [one.verdict for one in shown] == ["under way"]


def test_a_system_that_hangs_blocks_nothing_and_is_an_alarm(scene):
    asked, release, ms = threading.Event(), threading.Event(), [now_ms()]

    def answer() -> list[Orphan]:
        asked.set()
        release.wait(LIMIT_S)
        return []

    with watching(LocalFiles(scene.path), answer, lambda: ms[0]) as watcher:
        watcher.state()
        assert asked.wait(LIMIT_S)
        eventually(lambda: watcher.state().queries[0].read_ms, "the checkpoint is read")
        assert alarms_of(watcher.state()) == []
        ms[0] += int(SILENT_S * 1000) + 1000
        eventually(lambda: [one.key for one in alarms_of(watcher.state())] == ["silent shop"], "it is the only alarm")
        release.set()
        eventually(lambda: watcher.state().systems[0].answered_ms, "it has answered")
        assert alarms_of(watcher.state()) == []


def test_what_was_open_stays_shown_while_its_system_is_away(scene):
    answers: list[list[Orphan] | Exception] = [[mine(scene)]]

    def answer() -> list[Orphan]:
        if isinstance(answers[-1], Exception):
            raise answers[-1]
        return answers[-1]

    with watching(LocalFiles(scene.path), answer) as watcher:
        eventually(lambda: watcher.state().systems[0].open, "it is listed")
        answers.append(PreflightError("The server is away.", next_step="start it"))
        eventually(lambda: watcher.state().systems[0].error, "it is away")
        (system,) = watcher.state().systems
        assert (system.error, system.error_step, len(system.open)) == ("The server is away.", "Start it.", 1)
        answers.append(ZeroDivisionError("postgres://u:secret@h"))  # of a client: its words may hold anything
        found = eventually(lambda: (one := watcher.state().systems[0].error).startswith("System") and one, "another",
                           limit_s=LIMIT_S)  # fmt: skip
        assert found == "System 'shop' cannot be queried: ZeroDivisionError."
        answers.append([])
        eventually(lambda: not watcher.state().systems[0].error, "it is back")
        assert watcher.state().systems[0].open == []


def test_nothing_is_read_before_somebody_looks(scene):
    def polls() -> int:
        return sum(one.name == "sparkonce-page" for one in threading.enumerate())

    before = polls()
    with watching(LocalFiles(scene.path), list) as watcher:
        assert polls() == before
        watcher.state()
        eventually(lambda: watcher.state().queries[0].read_ms, "the checkpoint is read")
        assert polls() == before + 2
    eventually(lambda: polls() <= before, "the looks end")


def verdicts(watcher: PageWatcher) -> dict[str, str]:
    return {one.name.rpartition(".")[2]: one.verdict for one in watcher.state().systems[0].open}


@pytest.mark.parametrize("before", ["nothing", "read", "failed"])
def test_a_store_that_hangs_delays_no_verdict_of_another_query(scene, tmp_path, before):
    other, ms, found = PageScene(tmp_path / "clicks"), [now_ms()], [mine(scene)]
    files = Gated(other.path)
    files.is_away = before == "failed"
    if before != "nothing":
        files.gate.set()
    with watching({"clicks": files, "totals": LocalFiles(scene.path)}, lambda: list(found), lambda: ms[0]) as watcher:
        if before != "nothing":
            eventually(lambda: verdicts(watcher) == {"aaaa": "under way"}, "both were looked at")
            files.gate.clear()
            files.asked.clear()
        watcher.state()
        assert files.asked.wait(LIMIT_S)
        if before == "nothing":  # the transaction may be the query's, so wait for it, but only once
            ms[0] += int(LOG_WITHIN_S * 1000) + 1000
        found.append(mine(scene, "bbbb"))
        found.append(mine(other, "cccc"))
        both = {"aaaa": "under way", "bbbb": "under way"}
        eventually(lambda: both.items() <= verdicts(watcher).items(), "they are judged")
        if before == "read":
            assert "cccc" not in verdicts(watcher)  # it waits for its own log
            ms[0] += int(LOG_WITHIN_S * 1000) + 1000
        last = {**both, "cccc": "under way" if before == "read" else "not known"}
        eventually(lambda: verdicts(watcher) == last, "its own last reading counts")
        files.is_away = False
        files.gate.set()
        eventually(lambda: verdicts(watcher).get("cccc") == "under way", "the store is back")


def test_a_log_that_is_not_read_in_time_judges_by_its_last_reading(scene):
    ms, found, asked = [now_ms()], list[Orphan](), [0]

    def answer() -> list[Orphan]:
        asked[0] += len(found)
        return list(found)

    with watching(LocalFiles(scene.path), answer, lambda: ms[0], every_s=3600) as watcher:
        eventually(lambda: watcher.state().queries[0].read_ms, "it is read, for the last time")
        found.append(mine(scene))
        eventually(lambda: watcher.state() and asked[0] > 2, "it is listed")
        assert verdicts(watcher) == {}
        ms[0] += int(LOG_WITHIN_S * 1000) + 1000
        eventually(lambda: verdicts(watcher) == {"aaaa": "under way"}, "it is judged")


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
def test_of_two_copies_of_a_query_the_newest_log_counts(scene, tmp_path, order):
    shutil.copytree(scene.path, tmp_path / "copy")
    scene.job.run(3)  # another run, which is missing in the copy
    paths = {"old": tmp_path / "copy", "new": scene.path}
    with watching({one: LocalFiles(paths[one]) for one in order}, lambda: [mine(scene)]) as watcher:
        eventually(lambda: verdicts(watcher), "it is judged")
        state = watcher.state()
        (shown,) = state.systems[0].open
        assert (shown.verdict, "An older run has left it" in shown.why) == ("abort", True)
        assert {one.short for one in state.queries} == {short_query(scene.query)}
        assert max(state.queries, key=lambda query: query.log_end).location == "new"


def test_another_query_in_the_folder_replaces_what_was_shown(scene):
    def shown_batches(one: WatchedCheckpoint) -> list[tuple[str, int]]:
        found = one.newer(0)
        return [(found["runs"][each[1]], each[2]) for each in found["batches"]]

    ms = [now_ms()]
    one = WatchedCheckpoint("totals", LocalFiles(scene.path), 1, lambda: ms[0], threading.Condition())
    one.poll()
    assert shown_batches(one) == [(scene.run, number) for number in range(5)]
    before = one.newer(0)
    shutil.rmtree(scene.path)
    other = PageScene(scene.path)
    other.write(many(2, now_ms()))
    ms[0] += int(READ_AGAIN_S * 1000) + 1000  # its file names are unchanged
    one.poll()
    assert shown_batches(one) == [(other.run, 0), (other.run, 1)]
    assert one.newer(0)["first"] > before["last"]
    assert one.last.status.query == other.query
    assert one.is_of(short_query(other.query))


@pytest.mark.kafka
def test_transactions_on_a_real_broker_have_a_verdict_a_timeout_and_a_lag(witness, tmp_path, monkeypatch):
    scene, topic = PageScene(tmp_path / "totals"), witness.create_topic()
    scene.write(many(60, now_ms()))
    query = short_query(scene.query)
    position, _, nonce = scene.run.partition("-")
    ids = [
        str(TransactionalId(prefix=new_name("orders"), query=query, token=token, worker="a" * 12, lane=0))
        for token in (Token(int(position), nonce), Token(7, "00000007"))  # of the newest run and of an unknown one
    ]
    mine, unknown = (
        witness.prepare(topic, *values, transactional_id=name) for name, values in zip(ids, ("ab", "c"), strict=True)
    )
    file = tmp_path / "systems.yaml"
    file.write_text(
        f"systems:\n  kafka: {{bootstrap.servers: '{witness.bootstrap}'}}\n"
        "  gone: {system: redis, url: 'redis://127.0.0.1:1/0'}\n"
    )
    files = {"totals": LocalFiles(scene.path)}
    monkeypatch.setattr("sparkonce.ui.alarms.STRANGE_S", 0.0)
    with closing(PageWatcher(files, read_file(str(file), {}), checkpoints_every_s=0.1, systems_every_s=0.1)) as watcher:

        def found() -> dict[str, Any]:
            return {one.name: one for one in watcher.state().systems[0].open}

        eventually(lambda: set(ids) <= found().keys(), "both are listed")
        one, other = (found()[name] for name in ids)
        assert (one.verdict, other.verdict) == ("under way", "not known")
        assert 0 <= one.age_s < one.timeout_s == 60.0
        (part,) = one.partitions
        assert (part.topic, part.begins, part.readable, part.end, part.blocks) == (topic, 0, 0, 3, True)
        (late,) = other.partitions
        assert (late.begins, late.readable, late.blocks) == (2, 0, False)
        eventually(lambda: watcher.state().systems[1].error, "the other one is said to be away")
        assert watcher.state().systems[1].answered_ms is None

        monkeypatch.setattr("sparkonce.ui.watcher.targets_of", lambda _: {(topic, "")})
        billing = witness.prepare(topic, "theirs", transactional_id=new_name("billing"))
        name = str(billing.handle["transactional_id"])
        eventually(lambda: name in found(), "another application's is shown, too")
        one = found()[name]
        assert (one.verdict, one.query, one.timeout_s, one.age_s >= 0) == ("foreign", "", 60.0, True)
        assert [part.blocks for part in one.partitions] == [False], "behind those of the query"
        for ours in (mine, unknown):
            ours.producer.abort_transaction()
        title = "kafka: another application's transaction blocks readers"
        eventually(lambda: title in [one.title for one in alarms_of(watcher.state())], "an alarm")
        billing.producer.abort_transaction()
