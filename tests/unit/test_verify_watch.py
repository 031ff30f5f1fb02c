"""What the verifier reads from the decision log while others write to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sparkonce.log import DecisionLog
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim, Commit
from sparkonce.storage.local import LocalFiles
from sparkonce_lab.history import Event, EventKind, Recorder, load
from sparkonce_lab.watch import Readers, has_log, note_sizes, note_violation

OLD, NEW = Token(0, "00000000"), Token(1, "11111111")


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(tmp_path / "run")
    yield made
    made.close()


@pytest.fixture
def log(tmp_path: Path) -> DecisionLog:
    log = DecisionLog(LocalFiles(tmp_path))
    for token in (OLD, NEW):
        log.put(token.position, Claim(nonce=token.nonce, run=token.nonce, query="query", location="here"))
    return log


def decision(token: Token) -> Commit:
    return Commit(token=token, query="query", batch=0, offsets=(), handles=())


def noted(recorder: Recorder) -> Sequence[Event]:
    return load(recorder.folder).events


def test_a_decision_of_a_run_that_was_deposed_is_found(log: DecisionLog, recorder: Recorder, tmp_path: Path) -> None:
    log.put(2, decision(OLD))
    note_violation(recorder, LocalFiles(tmp_path), 3)
    (found,) = noted(recorder)
    assert (found.kind, found["driver"], found["error"]) == (EventKind.STOPPED, 3, "LogViolation")
    assert "for a run that was superseded" in found["message"]


def test_a_record_that_cannot_be_read_is_found(log: DecisionLog, recorder: Recorder, tmp_path: Path) -> None:
    log.put_bytes(2, b"{")
    note_violation(recorder, LocalFiles(tmp_path), 3)
    assert [event["error"] for event in noted(recorder)] == ["CorruptRecordError"]


def test_nothing_is_found_in_a_log_as_it_must_be(log: DecisionLog, recorder: Recorder, tmp_path: Path) -> None:
    log.put(2, decision(NEW))
    note_violation(recorder, LocalFiles(tmp_path), 3)
    assert not noted(recorder)


def test_only_the_files_of_a_log_elsewhere_are_counted(recorder: Recorder, log: DecisionLog, tmp_path: Path) -> None:
    log.put(2, decision(NEW))
    here = LocalFiles(tmp_path)
    assert has_log(here)
    elsewhere: Any = mock.Mock(names=here.names)
    assert not has_log(LocalFiles(tmp_path / "none"))
    note_sizes(recorder, here)
    note_sizes(recorder, elsewhere)
    first, _, away = noted(recorder)
    assert (first["name"], first["files"], away["name"], away["files"]) == ("log", 3, "log", 3)
    assert "bytes" not in away.fields
    note_sizes(recorder, mock.Mock(names=mock.Mock(side_effect=OSError)))
    assert len(noted(recorder)) == 3, "a store that does not answer is asked again later"


def test_a_reader_looks_on_when_it_could_not_read_the_log(log: DecisionLog, recorder: Recorder, tmp_path: Path) -> None:
    log.put(2, decision(OLD))
    looks = 0

    def newest() -> int:
        nonlocal looks
        looks += 1
        if looks == 3:  # the log could not be read twice
            path = tmp_path / "sparkonce" / "records" / f"{2:020d}"
            path.unlink()
            log.put(2, decision(NEW))
        if looks == 4:
            seen.set()
        return 0

    seen = threading.Event()
    system: Any = mock.Mock(newest=newest)
    system.name = "a system"
    readers = Readers([system], LocalFiles(tmp_path), recorder)
    readers.start()
    assert seen.wait(60.0)
    readers.stop()
    assert [(event.kind, event["batch"], event["decided"]) for event in noted(recorder)] == [(EventKind.SEEN, 0, 0)]
