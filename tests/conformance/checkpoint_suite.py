"""What every store of a checkpoint promises, and the decision log in it: one suite for all of them."""

from __future__ import annotations

import abc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from sparkonce.checkpoint.files import CheckpointFiles, Landed, PutUnknownError, Taken
from sparkonce.durable import is_outage
from sparkonce.errors import ConfigurationError, CorruptRecordError, NewerFormatError
from sparkonce.log.base import DecisionLog, LogStore, record_name
from sparkonce.log.files import log_store
from sparkonce.protocol.codec import encode_floor, encode_record
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.records import Claim, Commit
from sparkonce.protocol.view import Floor, LogView, LogViolation

RACES = 20
RECORD = f"sparkonce/records/{record_name(1)}"


def claim() -> Claim:
    return Claim(nonce="00000000", run="run", query="query", location="here")


def commit(batch: int) -> Commit:
    return Commit(token=Token(0, "00000000"), query="query", batch=batch, offsets=("1",), handles=())


def filled(store: LogStore, batches: int) -> DecisionLog:
    """A claim at position 0, and batch N decided at position N + 1."""
    log = DecisionLog(store)
    assert log.put(0, claim()) is None
    for batch in range(batches):
        assert log.put(batch + 1, commit(batch)) is None
    return log


def raced(racers: list[Callable[[], Landed | Taken]]) -> list[Landed | Taken | BaseException]:
    """Calls all at once, each in a thread."""
    ready = threading.Barrier(len(racers))
    answers: dict[int, Any] = {}

    def race(number: int) -> None:
        ready.wait()
        try:
            answers[number] = racers[number]()
        except BaseException as error:  # noqa: BLE001 - whoever compares the answers sees it
            answers[number] = error

    threads = [threading.Thread(target=race, args=(number,)) for number in range(len(racers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return [answers[number] for number in range(len(racers))]


RACER = """
import json, sys
{opening}
from sparkonce.checkpoint.files import Landed
print("ready", flush=True)
sys.stdin.readline()
won = [n for n in range({races}) if files.put(f"races/{{n}}", sys.argv[1].encode()) == Landed()]
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
        """A folder that is missing."""

    @abc.abstractmethod
    def another(self, files: CheckpointFiles) -> CheckpointFiles:
        """The same folder, by another client if the store has clients."""

    @abc.abstractmethod
    def opening(self, files: CheckpointFiles) -> str:
        """Python code for another process, which sets ``files`` to the same folder."""

    @pytest.fixture
    def store(self, files: CheckpointFiles) -> LogStore:
        return log_store(files)

    # --- files ------------------------------------------------------------------------------------------------------

    def test_what_is_put_is_read(self, files: CheckpointFiles) -> None:
        content = bytes(range(256)) * 400
        assert files.read("a/b/one") is None
        assert files.put("a/b/one", content) == Landed()
        assert files.put("a/b/empty", b"") == Landed()
        assert [one.read("a/b/one") for one in (files, self.another(files))] == [content] * 2
        assert files.read("a/b/empty") == b""
        assert files.inside("a").read("b/one") == content
        assert files.inside("a").inside("b").location == f"{files.location}/a/b"
        assert not files.location.endswith("/")

    def test_a_name_is_put_once(self, files: CheckpointFiles) -> None:
        assert files.put("one", b"first") == Landed()
        assert files.put("one", b"second") == Taken(standing=b"first")
        assert self.another(files).put("one", b"third") == Taken(standing=b"first")
        assert files.put("one", b"first") == Taken(standing=b"first"), "a repeated put meets its own bytes"
        assert files.read("one") == b"first"

    def test_a_name_never_stands_before_its_content(self, files: CheckpointFiles) -> None:
        other, content, failed = self.another(files), bytes(range(256)) * 1_000, threading.Event()
        names = [f"a/{number}" for number in range(self.races)]
        seen: list[bytes | None] = []

        def look() -> None:
            for name in names:
                while (found := other.read(name)) is None and not failed.is_set():
                    pass
                seen.append(found)

        reader = threading.Thread(target=look)
        reader.start()
        try:
            assert [files.put(name, content) for name in names] == [Landed()] * len(names)
        except BaseException:
            failed.set()
            raise
        finally:
            reader.join(120)
        assert seen == [content] * len(names)

    def test_names_are_those_of_files(self, files: CheckpointFiles) -> None:
        assert list(files.names("")) == list(files.names("a")) == []
        for name in ("a/1", "a/2", "a/deeper/3", "b/4"):
            files.put(name, b"x")
        assert sorted(files.names("a")) == ["1", "2"]
        assert list(files.names("")) == list(files.names("a/1")) == []
        assert sorted(files.inside("a").names("deeper")) == ["3"]

    def test_odd_names(self, files: CheckpointFiles) -> None:
        odd = files.inside("a b%20ü+#?")
        assert odd.put("it's &=,;@", b"odd") == Landed()
        assert list(odd.names("")) == ["it's &=,;@"]
        assert files.read("a b%20ü+#?/it's &=,;@") == b"odd"
        assert files.names("a b ü+#?") in ([], ())

    def test_a_folder_is_no_file(self, files: CheckpointFiles) -> None:
        files.put("a/1", b"x")
        try:
            found = files.read("a")
        except OSError:
            found = None  # an error is as good: it is never taken for a file
        assert found is None

    def test_a_file_is_no_folder(self, files: CheckpointFiles) -> None:
        files.put("a/1", b"x")
        with suppress(OSError):
            assert files.read("a/1/2") is None

    def test_replacing(self, files: CheckpointFiles) -> None:
        files.replace("a/one", b"first")
        assert self.another(files).read("a/one") == b"first"
        files.replace("a/one", b"2")
        assert self.another(files).read("a/one") == b"2"
        assert list(files.names("a")) == ["one"]

    def test_deleting(self, files: CheckpointFiles) -> None:
        for name in ("a/1", "a/2", "a/3"):
            files.put(name, b"x")
        files.delete(["a/1", "a/none", "nowhere/none", "a/3"])
        files.delete(["a/1"])
        files.delete([])
        assert list(files.names("a")) == ["2"]
        assert files.put("a/1", b"again") == Landed()

    def test_the_check_leaves_nothing(self, files: CheckpointFiles) -> None:
        files.put("one", b"x")
        files.check()
        files.inside("new/deep").check()
        assert list(files.names("")) == ["one"]
        assert list(files.names("new")) == []

    def test_syncing_and_tidying_change_nothing(self, files: CheckpointFiles) -> None:
        files.put("a/one", b"x")
        files.sync("a")
        files.tidy("a")
        files.tidy("nothing")
        assert self.another(files).read("a/one") == b"x"

    def test_threads_race_for_a_name(self, files: CheckpointFiles) -> None:
        sides = [files, self.another(files), files, self.another(files)]
        for number in range(self.races):
            name = f"races/{number}"
            answers = raced(
                [lambda one=one, side=side: one.put(name, b"%d" % side) for side, one in enumerate(sides)]  # type: ignore[misc]  # noqa: B023
            )
            (winner,) = [side for side, answer in enumerate(answers) if answer == Landed()]
            losers = [answer for side, answer in enumerate(answers) if side != winner]
            assert losers == [Taken(standing=b"%d" % winner)] * (len(sides) - 1)
            assert files.read(name) == b"%d" % winner

    def test_processes_race_for_names(self, files: CheckpointFiles) -> None:
        program = RACER.format(opening=self.opening(files), races=self.races)
        racers = {
            name: subprocess.Popen(
                [self.python, "-c", program, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for name in "abc"
        }
        for racer in racers.values():
            assert racer.stdout is not None
            assert any(line == "ready\n" for line in racer.stdout)
        for racer in racers.values():
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        won = {}
        for name, racer in racers.items():
            assert racer.stdout is not None
            line = next(line for line in racer.stdout if line.startswith("won "))
            won[name] = json.loads(line[4:])
            racer.communicate(timeout=120)
        assert sorted(number for numbers in won.values() for number in numbers) == list(range(self.races))
        for name, numbers in won.items():
            assert all(files.read(f"races/{number}") == name.encode() for number in numbers)
        assert len(files.names("races")) == self.races

    # --- the log ----------------------------------------------------------------------------------------------------

    def test_records(self, files: CheckpointFiles, store: LogStore) -> None:
        assert (list(store.read(0)), store.floor()) == ([], None)
        assert store.put(0, b"zero") == store.put(1, b"one") == Landed()
        assert store.put(1, b"two") == Taken(standing=b"one")
        assert [list(store.read(position)) for position in range(3)] == [[b"zero", b"one"], [b"one"], []]
        assert list(log_store(self.another(files)).read(0)) == [b"zero", b"one"]

    def test_a_gap_ends_the_log(self, store: LogStore) -> None:
        log = filled(store, 1)
        store.put(5, encode_record(commit(4), at_ms=0))
        assert log.read(LogView()).end == 2
        assert len(store.read(5)) == 1

    def test_floors_only_rise(self, store: LogStore) -> None:
        for position in (5, 9, 7):
            store.raise_floor(position, b"%d" % position)
        assert store.floor() == b"9"
        store.raise_floor(9, b"again")
        assert store.floor() == b"9"
        store.delete_below(9)
        store.raise_floor(5, b"5")
        assert store.floor() == b"9", "a lower one that comes late changes nothing"

    def test_a_put_below_the_floor_is_void(self, files: CheckpointFiles, store: LogStore) -> None:
        """The position is free again, so a late put lands there: who reads the floor behind it sees that it counts for
        nothing, and no reader finds it."""
        log = filled(store, 5)
        late = DecisionLog(log_store(self.another(files)))
        floor = log.read(LogView()).raised(2)
        log.raise_floor(floor)
        store.delete_below(floor.position)
        assert late.put(1, commit(0)) is None
        assert late.floor().position > 1
        view = late.read(LogView())
        assert (view.end, [decision.batch for decision in view.decisions]) == (6, [3, 4])

    def test_clean_up_deletes_below_and_nothing_else(self, files: CheckpointFiles, store: LogStore) -> None:
        for position in range(6):
            store.put(position, b"record")
        files.put("sparkonce/records/README", b"not ours")
        for position in (2, 4):
            store.raise_floor(position, b"%d" % position)
        store.delete_below(4)
        assert [position for position in range(7) if store.read(position)] == [4, 5]
        assert list(files.names("sparkonce/floors")) == [record_name(4)]
        assert "README" in files.names("sparkonce/records")
        store.delete_below(4)
        assert store.floor() == b"4"

    def test_reading_goes_on_beside_clean_up(self, files: CheckpointFiles, store: LogStore) -> None:
        log = filled(store, 8)
        view = log.read(LogView())
        floor = view.raised(2)
        log.raise_floor(floor)
        log.store.delete_below(floor.position)
        log.put(9, commit(8))
        assert [decision.batch for decision in log.read(view).decisions] == [6, 7, 8]
        other = DecisionLog(log_store(self.another(files)))
        assert [decision.batch for decision in other.read(LogView()).decisions] == [6, 7, 8]

    def test_many_records_are_read_in_order(self, files: CheckpointFiles, store: LogStore) -> None:
        records = [b"record %d" % position for position in range(25)]
        for position, data in enumerate(records):
            assert store.put(position, data) == Landed()
        assert list(log_store(self.another(files)).read(0)) == records

    def test_a_record_that_no_correct_run_can_have_written(self, store: LogStore) -> None:
        log = filled(store, 2)
        log.put(3, commit(0))
        with pytest.raises(LogViolation, match="decides batch 0 after batch 1"):
            log.read(LogView())

    @pytest.mark.parametrize("how", ["torn", "empty", "altered", "zeros", "foreign"])
    def test_a_damaged_record_is_refused(self, files: CheckpointFiles, store: LogStore, how: str) -> None:
        log = filled(store, 1)
        data = files.read(RECORD)
        assert data is not None
        files.replace(RECORD, damaged(data, how))
        for ask in (lambda: log.read(LogView()), lambda: log.put(1, commit(0))):
            with pytest.raises(CorruptRecordError, match="Record 1 of the decision log") as caught:
                ask()
            assert store.location in str(caught.value)

    def test_a_damaged_floor_and_a_newer_one(self, store: LogStore) -> None:
        data = encode_floor(Floor(position=1))
        store.raise_floor(1, data[:-5])
        with pytest.raises(CorruptRecordError, match="The floor of the decision log"):
            DecisionLog(store).floor()
        store.raise_floor(2, encode_floor(Floor(position=2)).replace(b"floor 1 ", b"floor 4 ", 1))
        with pytest.raises(NewerFormatError, match="The floor"):
            DecisionLog(store).floor()


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


@dataclass(frozen=True, slots=True)
class Faulty:
    """A store behind faults.

    Attributes:
        files: The client behind the faults.
        clean: A client in front of none.
        lose_reply: Carries out the next put's deciding request, and loses its answer.
        lose_replies: The same, and lets nothing through from then on, until `heal`.
        cut: Lets nothing through until `heal`.
        heal: Ends all of these.
    """

    files: CheckpointFiles
    clean: CheckpointFiles
    lose_reply: Callable[[], object]
    lose_replies: Callable[[], object]
    cut: Callable[[], object]
    heal: Callable[[], object]


class NetworkSuite(abc.ABC):
    """What a store promises whose servers do not always answer."""

    @pytest.fixture
    @abc.abstractmethod
    def faulty(self) -> Iterator[Faulty]:
        """A folder that is missing, and the faults in front of it."""

    def test_a_put_whose_reply_is_lost(self, faulty: Faulty) -> None:
        assert faulty.files.put("a/0", b"before") == Landed()
        faulty.lose_reply()
        with suppress(PutUnknownError):
            assert faulty.files.put("a/1", b"record") == Taken(standing=b"record"), "asked again, it met its own bytes"
        assert faulty.clean.read("a/1") == b"record"
        assert faulty.files.put("a/1", b"record") == Taken(standing=b"record")
        assert sorted(faulty.clean.names("a")) == ["0", "1"]

    def test_a_put_that_is_never_answered(self, faulty: Faulty) -> None:
        assert faulty.files.put("a/0", b"before") == Landed()
        faulty.lose_replies()
        with pytest.raises(PutUnknownError):
            faulty.files.put("a/1", b"record")
        assert faulty.clean.read("a/1") == b"record"
        faulty.heal()
        assert faulty.files.put("a/1", b"another") == Taken(standing=b"record")
        assert faulty.files.put("a/2", b"after") == Landed()
        assert sorted(faulty.clean.names("a")) == ["0", "1", "2"]

    def test_a_store_that_is_gone_and_back(self, faulty: Faulty) -> None:
        assert faulty.files.put("a/0", b"before") == Landed()
        faulty.cut()
        with pytest.raises((OSError, PutUnknownError)) as caught:
            faulty.files.put("a/1", b"record")
        refused = isinstance(caught.value, OSError)
        assert not refused or is_outage(caught.value), "it is waited for"
        for ask in (lambda: faulty.files.read("a/0"), lambda: faulty.files.names("a")):
            with pytest.raises(OSError, match=r"\w"):
                ask()
        faulty.heal()
        answer = faulty.files.put("a/1", b"record")
        assert answer == Landed() or (not refused and answer == Taken(standing=b"record"))
        assert faulty.clean.read("a/1") == b"record"


@dataclass(frozen=True, slots=True)
class Refusing:
    """A store that refuses puts for a known reason.

    Attributes:
        files: The client that is refused.
        clean: One that is not.
        during: Within it puts are refused.
        passes: True if the refusal is one that is waited for.
    """

    files: CheckpointFiles
    clean: CheckpointFiles
    during: AbstractContextManager[object]
    passes: bool


class RefusalSuite(abc.ABC):
    """What a store promises that refuses: read-only, full, over its quota."""

    @pytest.fixture
    @abc.abstractmethod
    def refusing(self) -> Refusing:
        """A folder that is missing, and a way to have puts refused."""

    def test_a_refused_put_has_not_landed(self, refusing: Refusing) -> None:
        assert refusing.files.put("a/0", b"before") == Landed()
        with refusing.during:
            with pytest.raises(OSError, match=r"\w") as caught:
                refusing.files.put("a/1", b"record")
            assert is_outage(caught.value) == refusing.passes
            assert refusing.files.read("a/0") == b"before"
            if not refusing.passes:
                with pytest.raises(ConfigurationError):
                    refusing.files.check()
        assert refusing.clean.read("a/1") is None
        assert refusing.clean.put("a/1", b"record") == Landed()
