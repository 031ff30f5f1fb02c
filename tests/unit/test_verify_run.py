from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.errors import PreflightError
from sparkonce.storage.local import LocalFiles
from sparkonce_lab import run as module
from sparkonce_lab.checkpoint import checkpoint_disk, keep_logs
from sparkonce_lab.history import OBSERVED, EventKind, Recorder, load
from sparkonce_lab.rig.process import end_on_signals
from sparkonce_lab.run import Options, read_systems, run
from sparkonce_lab.workload import Workload
from unit.verify_world import good_run


class Fake:
    keep_place = False

    def __init__(self, name: str, **errors: Exception) -> None:
        self.name = name
        self.errors = errors
        self.called: list[str] = []
        self.answers = 0

    def _do(self, what: str) -> None:
        self.called.append(what)
        if what in self.errors:
            raise self.errors[what]

    def start(self, _: Path) -> None:
        self._do("start")

    def stop(self) -> None:
        self._do("stop")

    def read(self) -> Any:
        self._do("read")
        return OBSERVED.empty_table()

    def left_open(self) -> list[str]:
        self._do("left_open")
        return ["one"]


def asked(folder: Path, source: Any, *systems: Any, **more: Any) -> Options:
    return Options(source=source, systems=systems, folder=folder, seed=1, rows=1, workload=Workload(seed=1), **more)


def test_a_package_that_is_missing_is_named(tmp_path):
    missing = ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
    system = Fake("postgres", start=missing)
    with pytest.raises(PreflightError, match="postgres needs the package psycopg") as refused:
        run(asked(tmp_path / "run", Fake("kafka"), system), [].append)
    assert refused.value.next_step == "pip install 'sparkonce[postgres]'"


def test_what_cannot_be_ended_hides_nothing(tmp_path):
    said: list[str] = []
    kafka = Fake("kafka", stop=OSError("the topic is still there"))
    postgres = Fake("postgres", start=PreflightError("no server"), stop=RuntimeError("no schema"))
    with pytest.raises(PreflightError, match="No server"):
        run(asked(tmp_path / "run", kafka, postgres), said.append)
    assert (kafka.called, postgres.called) == (["start", "stop"], ["start", "stop"])
    assert said[-2:] == [
        "postgres could not be cleaned up: no schema",
        "kafka could not be cleaned up: the topic is still there",
    ]


def test_a_version_that_nobody_knows_is_told_before_anything_starts(tmp_path, monkeypatch):
    def version(name: str) -> str:
        raise module.PackageNotFoundError(name)

    monkeypatch.setattr(module, "version", version)
    kafka = Fake("kafka")
    with pytest.raises(PreflightError, match="sparkonce is not installed"):
        run(asked(tmp_path / "run", kafka), [].append)
    assert kafka.called == []


def test_drivers_end_first_and_nothing_keeps_the_others_from_ending():
    ended: list[str] = []

    def end(name: str, error: Exception | None = None) -> Any:
        def stop() -> None:
            ended.append(name)
            if error is not None:
                raise error

        return SimpleNamespace(stop=stop, end=stop)

    said: list[str] = []
    running: Any = object.__new__(module._Run)
    running._say = said.append
    running._conductor = end("drivers", OSError("a process is left"))
    running._readers, running._feeder = end("readers", TimeoutError()), end("feeder")
    running._end()
    assert ended == ["drivers", "readers", "feeder"]
    assert said == ["a process is left", "TimeoutError()"]


@pytest.mark.parametrize("lost", [True, False])
def test_rows_stay_on_the_users_own_servers_where_something_is_wrong_with_them(lost, tmp_path):
    spoilt = good_run()
    if lost:
        spoilt.observed["kafka"].pop()
    kafka, postgres = Fake("kafka"), Fake("postgres")
    options = asked(tmp_path, kafka, postgres, addresses={"kafka": "b:1"})
    said: list[str] = []
    module._keep_what_was_found(spoilt.history(), options, said.append)
    assert (kafka.keep_place, postgres.keep_place) == (lost, False)
    assert len(said) == lost


def test_what_cannot_be_read_costs_nothing_that_can(tmp_path):
    class Late(Fake):
        def read(self) -> Any:
            self.errors = {} if "read" in self.called else {"read": OSError("not yet")}
            return super().read()

    said: list[str] = []
    recorder = Recorder(tmp_path)
    systems: Any = [Fake("kafka", read=OSError("gone")), Fake("postgres", left_open=TimeoutError()), Late("redis")]
    read_systems(systems, recorder, said.append, insist_s=1.5)
    recorder.close()
    history = load(tmp_path)
    assert set(history.observed) == {"postgres", "redis"}
    assert [event["system"] for event in history.of(EventKind.OPEN)] == ["kafka", "redis"]
    assert [(event["what"], event["why"]) for event in history.of(EventKind.UNREAD)] == [
        ("the rows in kafka", "gone"),
        ("what postgres holds open", "TimeoutError()"),
    ]
    assert said == ["the rows in kafka: not read: gone", "what postgres holds open: not read: TimeoutError()"]


def checkpoint(folder: Path) -> Path:
    for name in ("sparkonce/records", "offsets", "commits", "state"):
        (folder / name).mkdir(parents=True)
        (folder / name / "0").write_text(name)
    (folder / "metadata").write_text("{}")
    return folder


LOGS = ["commits/0", "metadata", "offsets/0", "sparkonce/records/0"]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_logs_of_a_checkpoint_outlive_its_disk(tmp_path):
    with checkpoint_disk(tmp_path / "checkpoint", [].append) as place:
        checkpoint(tmp_path / "checkpoint" / "query")
        is_small = place.disk is not None
    assert files(tmp_path) == [f"checkpoint/query/{name}" for name in (LOGS if is_small else [*LOGS, "state/0"])]


def test_a_file_that_cannot_be_copied_costs_no_other(tmp_path):
    class Unread(LocalFiles):
        def read(self, path: str) -> bytes | None:
            if path == "offsets/1":
                raise OSError("as the test says")
            return super().read(path)

    made = checkpoint(tmp_path / "query")
    (made / "offsets" / "1").touch()
    with pytest.raises(OSError, match="offsets/1: as the test says"):
        keep_logs(Unread(made), tmp_path / "kept")
    assert files(tmp_path / "kept") == LOGS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_us_in_order(number):
    outside = signal.signal(number, signal.SIG_DFL)  # nohup makes a process ignore SIGHUP
    try:
        with pytest.raises(SystemExit) as end, end_on_signals():
            os.kill(os.getpid(), number)
        assert end.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, outside)
