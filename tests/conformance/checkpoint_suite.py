"""The suites of every store of a checkpoint: of its files, of the decision log in it, and of a server with faults."""

from __future__ import annotations

import abc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from sparkonce.decision_log import DecisionLog, record_name
from sparkonce.errors import ConfigurationError, CorruptRecordError, NewerFormatError, SupersededError
from sparkonce.protocol.codec import encode_floor, encode_record
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim, Commit, Floor, LogView, LogViolation
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError, Taken, may_pass
from sparkonce_rabbitmq.queue.segments import Segment, Segments

RACES = 20
RECORD = f"sparkonce/records/{record_name(1)}"


def claim() -> Claim:
    return Claim(nonce="00000000", run="run", query="query", location="here")


def commit(batch: int) -> Commit:
    return Commit(token=Token(0, "00000000"), query="query", batch=batch, offsets=("1",), handles=())


def filled(log: DecisionLog, batches: int) -> DecisionLog:
    """Writes a claim at position 0 and the decision of batch N at position N + 1."""
    assert log.put(0, claim()) is None
    for batch in range(batches):
        assert log.put(batch + 1, commit(batch)) is None
    return log


def raced(racers: list[Callable[[], Landed | Taken]]) -> list[Landed | Taken | BaseException]:
    """Makes the calls at the same time, each in its own thread, and returns their answers or errors."""
    ready = threading.Barrier(len(racers))
    answers: dict[int, Any] = {}

    def race(number: int) -> None:
        ready.wait()
        try:
            answers[number] = racers[number]()
        except BaseException as error:  # noqa: BLE001 - returned as an answer
            answers[number] = error

    threads = [threading.Thread(target=race, args=(number,)) for number in range(len(racers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return [answers[number] for number in range(len(racers))]


def check_race(standing: bytes | None, data: Sequence[bytes], answers: Sequence[Any]) -> bool:
    """Checks that one put succeeded, and no other was reported as successful. Returns True if the success was reported.

    A put whose answer is lost, or too slow on a busy machine, is retried. The retry finds its own bytes, or the outcome
    stays unknown.
    """
    known = [
        (one, answer) for one, answer in zip(data, answers, strict=True) if not isinstance(answer, PutUnknownError)
    ]
    for one, answer in known:
        if isinstance(answer, BaseException):
            raise answer
        assert standing == (one if answer == Landed() else answer.standing)
    assert standing in data
    won = standing in [one for one, _ in known]
    assert won or len(known) < len(data)
    return won


RACER = """
import json, sys
{opening}
from sparkonce.storage.files import Landed, Taken
print("ready", flush=True)
sys.stdin.readline()
mine = sys.argv[1].encode()
won = [n for n in range({races}) if files.put(f"races/{{n}}", mine) in (Landed(), Taken(standing=mine))]
print("won", json.dumps(won), flush=True)
"""


class CheckpointSuite(abc.ABC):
    """Hooks first, then the checks.

    Attributes:
        python: The program that runs the other processes.
        races: Races between threads, and between processes.
    """

    python = sys.executable
    races = RACES

    @pytest.fixture
    @abc.abstractmethod
    def files(self) -> CheckpointFiles:
        """A folder that does not exist yet."""

    @abc.abstractmethod
    def another(self, files: CheckpointFiles) -> CheckpointFiles:
        """The same folder, by another client if the store has clients."""

    @abc.abstractmethod
    def opening(self, files: CheckpointFiles) -> str:
        """Python code for another process, which sets ``files`` to the same folder."""

    @pytest.fixture
    def log(self, files) -> DecisionLog:
        return DecisionLog(files)

    # --- files ------------------------------------------------------------------------------------------------------

    def test_what_is_put_is_read(self, files):
        content = bytes(range(256)) * 400
        assert files.read("a/b/one") is None
        assert files.put("a/b/one", content) == Landed()
        assert files.put("a/b/empty", b"") == Landed()
        assert [one.read("a/b/one") for one in (files, self.another(files))] == [content] * 2
        assert files.read("a/b/empty") == b""
        assert files.inside("a").read("b/one") == content
        assert files.inside("a").inside("b").location == f"{files.location}/a/b"
        assert not files.location.endswith("/")

    def test_a_name_is_put_once(self, files):
        assert files.put("one", b"first") == Landed()
        assert files.put("one", b"second") == Taken(standing=b"first")
        assert self.another(files).put("one", b"third") == Taken(standing=b"first")
        assert files.put("one", b"first") == Taken(standing=b"first"), "a repeated put meets its own bytes"
        assert files.read("one") == b"first"

    def test_messages_of_a_queue_are_kept_by_the_newest_receiver(self, files):
        older, newer = (Segments(one.inside("queue").inside("orders%2F1")) for one in (files, self.another(files)))
        assert older.identity("message_id") == newer.identity("message_id")
        kept = Segment(token=b"a" * 16, ids=(b"0" * 16, b"1" * 16), rows=b"rows")
        for number, segment in enumerate([Segment(token=b"a" * 16, ids=()), kept]):
            older.put(number, segment)
        older.put(1, kept)  # the answer was lost
        newer.put(2, Segment(token=b"b" * 16, ids=()))
        with pytest.raises(SupersededError):
            older.put(2, kept)
        with pytest.raises(SupersededError):
            older.check_newest(1)
        assert (newer.numbers(), newer.read(1)) == ([0, 1, 2], kept)
        newer.forget([(0, ()), (1, kept.ids)])
        assert (newer.numbers(), newer.recorded_ids()) == ([2], [("000000000000-000000000001", kept.ids)])
        with pytest.raises(SupersededError):
            older.put(0, Segment(token=b"a" * 16, ids=()))
        assert newer.numbers() == [2]
        with pytest.raises(CorruptRecordError, match="is missing"):
            newer.read(1)

    def test_a_name_never_stands_before_its_content(self, files):
        other, content, failed = self.another(files), bytes(range(256)) * 1_000, threading.Event()
        names = [f"a/{number}" for number in range(self.races)]
        seen: list[bytes | None] = []

        def read_all() -> None:
            for name in names:
                while (found := other.read(name)) is None and not failed.is_set():
                    pass
                seen.append(found)

        reader = threading.Thread(target=read_all)
        reader.start()
        try:
            assert [files.put(name, content) for name in names] == [Landed()] * len(names)
        except BaseException:
            failed.set()
            raise
        finally:
            reader.join(120)
        assert seen == [content] * len(names)

    def test_names_are_those_of_files(self, files):
        assert list(files.names("")) == list(files.names("a")) == []
        for name in ("a/1", "a/2", "a/deeper/3", "b/4"):
            files.put(name, b"x")
        assert sorted(files.names("a")) == ["1", "2"]
        assert list(files.names("")) == list(files.names("a/1")) == []
        assert sorted(files.inside("a").names("deeper")) == ["3"]

    def test_odd_names(self, files):
        odd = files.inside("a b%20ü+#?")
        assert odd.put("it's &=,;@", b"odd") == Landed()
        assert list(odd.names("")) == ["it's &=,;@"]
        assert files.read("a b%20ü+#?/it's &=,;@") == b"odd"
        assert files.names("a b ü+#?") in ([], ())

    def test_a_folder_is_no_file(self, files):
        files.put("a/1", b"x")
        try:
            found = files.read("a")
        except OSError:
            found = None  # an error would be fine, too, but truncated bytes must never be returned as the file
        assert found is None

    def test_a_file_is_no_folder(self, files):
        files.put("a/1", b"x")
        with suppress(OSError):
            assert files.read("a/1/2") is None

    def test_replacing(self, files):
        files.replace("a/one", b"first")
        assert self.another(files).read("a/one") == b"first"
        files.replace("a/one", b"2")
        assert self.another(files).read("a/one") == b"2"
        assert list(files.names("a")) == ["one"]

    def test_deleting(self, files):
        for name in ("a/1", "a/2", "a/3"):
            files.put(name, b"x")
        files.delete(["a/1", "a/none", "nowhere/none", "a/3"])
        files.delete(["a/1"])
        files.delete([])
        assert list(files.names("a")) == ["2"]
        assert files.put("a/1", b"again") == Landed()

    def test_the_check_leaves_nothing(self, files):
        files.put("one", b"x")
        files.check()
        files.inside("new/deep").check()
        assert list(files.names("")) == ["one"]
        assert list(files.names("new")) == []

    def test_syncing_and_tidying_change_nothing(self, files):
        files.put("a/one", b"x")
        files.sync("a")
        files.tidy("a")
        files.tidy("nothing")
        assert self.another(files).read("a/one") == b"x"

    def test_threads_race_for_a_name(self, files):
        sides = {b"0": files, b"1": self.another(files), b"2": files, b"3": self.another(files)}
        known = 0
        for number in range(self.races):
            name = f"races/{number}"
            answers = raced([partial(side.put, name, data) for data, side in sides.items()])
            known += check_race(files.read(name), list(sides), answers)
        assert known > self.races / 2

    def test_processes_race_for_names(self, files):
        program = RACER.format(opening=self.opening(files), races=self.races)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with ExitStack() as stack:
            racers = {name: subprocess.Popen([self.python, "-c", program, name], **pipes) for name in "abc"}
            for racer in racers.values():
                stack.enter_context(racer)
                stack.callback(racer.kill)
            for racer in racers.values():
                assert any(line == "ready\n" for line in racer.stdout)
            for racer in racers.values():
                racer.stdin.write("go\n")
                racer.stdin.flush()
            won = {
                name: json.loads(next(line for line in racer.stdout if line.startswith("won "))[4:])
                for name, racer in racers.items()
            }
        assert sorted(number for numbers in won.values() for number in numbers) == list(range(self.races))
        for name, numbers in won.items():
            assert all(files.read(f"races/{number}") == name.encode() for number in numbers)
        assert len(files.names("races")) == self.races

    # --- the log ----------------------------------------------------------------------------------------------------

    def test_records(self, files, log):
        assert (list(log.read_bytes(0)), log.floor_bytes()) == ([], None)
        assert log.put_bytes(0, b"zero") == log.put_bytes(1, b"one") == Landed()
        assert log.put_bytes(1, b"two") == Taken(standing=b"one")
        assert [list(log.read_bytes(position)) for position in range(3)] == [[b"zero", b"one"], [b"one"], []]
        assert list(DecisionLog(self.another(files)).read_bytes(0)) == [b"zero", b"one"]

    def test_a_gap_ends_the_log(self, log):
        filled(log, 1)
        log.put_bytes(5, encode_record(commit(4), at_ms=0))
        assert log.read(LogView()).end == 2
        assert len(log.read_bytes(5)) == 1

    def test_floors_only_rise(self, log):
        for position in (5, 9, 7):
            log.raise_floor_bytes(position, b"%d" % position)
        assert log.floor_bytes() == b"9"
        log.raise_floor_bytes(9, b"again")
        assert log.floor_bytes() == b"9"
        log.delete_below(9)
        log.raise_floor_bytes(5, b"5")
        assert log.floor_bytes() == b"9", "a lower one that comes late changes nothing"

    def test_a_put_below_the_floor_is_void(self, files, log):
        """The position is free again, so a late put succeeds there.

        Its caller then reads the floor and sees that the put is void, and no reader ever finds it.
        """
        filled(log, 5)
        late = DecisionLog(self.another(files))
        floor = log.read(LogView()).raised(2)
        log.raise_floor(floor)
        log.delete_below(floor.position)
        assert late.put(1, commit(0)) is None
        assert late.floor().position > 1
        view = late.read(LogView())
        assert (view.end, [decision.batch for decision in view.decisions]) == (6, [3, 4])

    def test_clean_up_deletes_below_and_nothing_else(self, files, log):
        for position in range(6):
            log.put_bytes(position, b"record")
        files.put("sparkonce/records/README", b"not ours")
        for position in (2, 4):
            log.raise_floor_bytes(position, b"%d" % position)
        log.delete_below(4)
        assert [position for position in range(7) if log.read_bytes(position)] == [4, 5]
        assert list(files.names("sparkonce/floors")) == [record_name(4)]
        assert "README" in files.names("sparkonce/records")
        log.delete_below(4)
        assert log.floor_bytes() == b"4"

    def test_reading_goes_on_beside_clean_up(self, files, log):
        filled(log, 8)
        view = log.read(LogView())
        floor = view.raised(2)
        log.raise_floor(floor)
        log.delete_below(floor.position)
        log.put(9, commit(8))
        assert [decision.batch for decision in log.read(view).decisions] == [6, 7, 8]
        other = DecisionLog(self.another(files))
        assert [decision.batch for decision in other.read(LogView()).decisions] == [6, 7, 8]

    def test_many_records_are_read_in_order(self, files, log):
        records = [b"record %d" % position for position in range(25)]
        for position, data in enumerate(records):
            assert log.put_bytes(position, data) == Landed()
        assert list(DecisionLog(self.another(files)).read_bytes(0)) == records

    def test_a_record_that_no_correct_run_can_have_written(self, log):
        filled(log, 2)
        log.put(3, commit(0))
        with pytest.raises(LogViolation, match="decides batch 0 after batch 1"):
            log.read(LogView())

    @pytest.mark.parametrize("how", ["torn", "empty", "altered", "zeros", "foreign"])
    def test_a_damaged_record_is_refused(self, files, log, how):
        filled(log, 1)
        data = files.read(RECORD)
        assert data is not None
        files.replace(RECORD, damaged(data, how))
        for ask in (lambda: log.read(LogView()), lambda: log.put(1, commit(0))):
            with pytest.raises(CorruptRecordError, match="Record 1 of the decision log") as caught:
                ask()
            assert log.location in str(caught.value)

    def test_a_damaged_floor_and_a_newer_one(self, log):
        data = encode_floor(Floor(position=1))
        log.raise_floor_bytes(1, data[:-5])
        with pytest.raises(CorruptRecordError, match="The floor of the decision log"):
            log.floor()
        log.raise_floor_bytes(2, encode_floor(Floor(position=2)).replace(b"floor 1 ", b"floor 4 ", 1))
        with pytest.raises(NewerFormatError, match="The floor"):
            log.floor()


def damaged(data: bytes, how: str) -> bytes:
    if how == "torn":
        return data[:-5]
    if how == "empty":
        return b""
    if how == "altered":
        return data.replace(b'"batch":0', b'"batch":1')
    if how == "zeros":
        return bytes(len(data))
    return b"something else entirely\n{}"


# --- servers that are slow, lose replies, reject requests or are down -------------------------------------------------


@dataclass(frozen=True, slots=True)
class Faulty:
    """A checkpoint store with fault injection.

    Attributes:
        files: The client whose requests go through the fault injection.
        clean: A client that bypasses the fault injection.
        lose_reply: Executes the request that decides the next put, and drops its reply.
        lose_replies: Does the same, and then blocks everything until `heal`.
        cut: Blocks everything until `heal`.
        heal: Ends all faults.
    """

    files: CheckpointFiles
    clean: CheckpointFiles
    lose_reply: Callable[[], object]
    lose_replies: Callable[[], object]
    cut: Callable[[], object]
    heal: Callable[[], object]


class NetworkSuite(abc.ABC):
    """The promises of a store whose servers do not always answer."""

    @pytest.fixture
    @abc.abstractmethod
    def faulty(self) -> Iterator[Faulty]:
        """A folder that does not exist yet, and the faults in front of it."""

    def test_a_put_whose_reply_is_lost(self, faulty):
        assert faulty.files.put("a/0", b"before") == Landed()
        faulty.lose_reply()
        with suppress(PutUnknownError):
            assert faulty.files.put("a/1", b"record") == Taken(standing=b"record"), "asked again, it met its own bytes"
        assert faulty.clean.read("a/1") == b"record"
        assert faulty.files.put("a/1", b"record") == Taken(standing=b"record")
        assert sorted(faulty.clean.names("a")) == ["0", "1"]

    def test_a_race_in_which_an_answer_is_lost(self, faulty):
        assert faulty.files.put("a/0", b"before") == Landed()
        faulty.lose_reply()
        answers = raced([partial(one.put, "a/1", data) for data, one in ((b"1", faulty.files), (b"2", faulty.clean))])
        check_race(faulty.clean.read("a/1"), [b"1", b"2"], answers)

    def test_a_put_that_is_never_answered(self, faulty):
        assert faulty.files.put("a/0", b"before") == Landed()
        faulty.lose_replies()
        with pytest.raises(PutUnknownError):
            faulty.files.put("a/1", b"record")
        assert faulty.clean.read("a/1") == b"record"
        faulty.heal()
        assert faulty.files.put("a/1", b"another") == Taken(standing=b"record")
        assert faulty.files.put("a/2", b"after") == Landed()
        assert sorted(faulty.clean.names("a")) == ["0", "1", "2"]

    def test_a_store_that_is_gone_and_back(self, faulty):
        assert faulty.files.put("a/0", b"before") == Landed()
        faulty.cut()
        with pytest.raises((OSError, PutUnknownError)) as caught:
            faulty.files.put("a/1", b"record")
        refused = isinstance(caught.value, OSError)
        assert not refused or may_pass(caught.value), "it is waited for"
        for ask in (lambda: faulty.files.read("a/0"), lambda: faulty.files.names("a")):
            with pytest.raises(OSError, match=r"\w"):
                ask()
        faulty.heal()
        answer = faulty.files.put("a/1", b"record")
        assert answer == Landed() or (not refused and answer == Taken(standing=b"record"))
        assert faulty.clean.read("a/1") == b"record"


@dataclass(frozen=True, slots=True)
class Refusing:
    """A store that rejects puts for a known reason.

    Attributes:
        files: The client that is rejected.
        clean: A client that is not rejected.
        during: A context in which puts are rejected.
        passes: True if callers wait until puts are accepted again.
    """

    files: CheckpointFiles
    clean: CheckpointFiles
    during: AbstractContextManager[object]
    passes: bool


class RefusalSuite(abc.ABC):
    """The promises of a store that rejects puts because it is read-only, full, or over its quota."""

    @pytest.fixture
    @abc.abstractmethod
    def refusing(self) -> Refusing:
        """A folder that does not exist yet, and a way to have puts rejected."""

    def test_a_refused_put_has_not_landed(self, refusing):
        assert refusing.files.put("a/0", b"before") == Landed()
        with refusing.during:
            with pytest.raises(OSError, match=r"\w") as caught:
                refusing.files.put("a/1", b"record")
            assert may_pass(caught.value) == refusing.passes
            assert refusing.files.read("a/0") == b"before"
            if not refusing.passes:
                with pytest.raises(ConfigurationError):
                    refusing.files.check()
        assert refusing.clean.read("a/1") is None
        assert refusing.clean.put("a/1", b"record") == Landed()
