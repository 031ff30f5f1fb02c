"""Common code for sinks whose rows wait in the checkpoint until their batch is decided.

The product's own writer, committer, ledger and folder run here, on a store that loses, repeats and delays requests. A
model of the target implements `Staged.show`, which is called for each row that its readers see.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from simulation.engine import UNDER_WAY
from simulation.oracle import Violation
from simulation.spark import QUERY
from simulation.store import ModelFiles
from simulation.systems import System, Writer
from sparkonce.protocol.ownership import TransactionName, short_query
from sparkonce.sink import WriterContext
from sparkonce.sinks.write_ahead.application import Applies, Apply, CallSettings, Per
from sparkonce.sinks.write_ahead.folder import StoredFolder
from sparkonce.sinks.write_ahead.ledger import LOST, Ledger, entries_of, text_of
from sparkonce.sinks.write_ahead.writer import WriteAheadWriter

if TYPE_CHECKING:
    from concurrent.futures import Future

    from simulation.engine import Simulation
    from simulation.oracle import Key
    from simulation.spark import Process
    from sparkonce.protocol.handles import Scalar
    from sparkonce.sink import Owner

ROWS = 4
"""How each row of the schedule is represented: by two rows for each of the two parts."""

WIDTH = 6
"""The length of a row, which is a number."""

WAIT_S = 0.5
_FOLDER, _LEDGER, _IDENTITY = "folder", "ledger", "identity"
_BEGUN = f"{_LEDGER}/begun/"
_WAITING, _FATE, _DISCARDED = f"{_FOLDER}/rows/", f"{_FOLDER}/fate/", b"discarded"


class SparkError(Exception):
    """The error that Spark raises, on a driver that uses it to read files or write to a table."""


class Staged(System):
    """A target, and the folder of its sink."""

    rows_each = ROWS
    per: Per = "batch"
    parallel = 1
    facts: Mapping[str, str] = {"identity": _FOLDER, "ledger": _LEDGER, "query": short_query(QUERY)}

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.store = ModelFiles(simulation, self.called, self._changed)
        for folder in (_FOLDER, _LEDGER):
            self.store.kept[f"{folder}/{_IDENTITY}"] = folder.encode()
        self.folder = StoredFolder(self.store.inside(_FOLDER), Ledger(self.store.inside(_LEDGER)))
        self.written: list[tuple[TransactionName, int]] = []
        self._shown: dict[TransactionName, set[int]] = {}
        self._sizes: dict[TransactionName, int] = {}
        self._given_up: set[TransactionName] = set()

    def settings(self, applies: Applies, apply: Apply) -> CallSettings:
        """The settings of the calls."""
        return CallSettings(
            apply=apply, is_applied=None, applies=applies, per=self.per, parallel=self.parallel, wait_s=WAIT_S
        )

    def writer(self, owner: Owner, process: Process, batch: int, slot: int, copy: int) -> Writer:
        return _Writer(self, owner, batch, slot, copy)

    def lingering(self) -> list[Key]:
        names = [path.removeprefix(_WAITING) for path in self.store.kept if path.startswith(_WAITING)]
        return [(self.name, name) for name in names if self.store.kept.get(_FATE + name) != b"started"]

    def expire(self) -> Callable[[], None] | None:
        """Somebody deletes rows that no commit has seen yet."""
        found = [
            path
            for path in self.store.kept
            if path.startswith(_WAITING)
            and path not in self.store.seen
            and _FATE + path.removeprefix(_WAITING) not in self.store.kept
        ]

        def lose(path: str) -> None:
            self.simulation.say(self.called, "somebody deletes", path)
            del self.store.kept[path]
            self.simulation.oracle.lost((self.name, path.removeprefix(_WAITING)))

        return self.one_of(found, lose)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def number_of(self, name: TransactionName, place: int) -> int:
        """Returns the row of a task attempt, as a unique number."""
        self.written.append((name, place))
        self._sizes[name] = place + 1
        return len(self.written) - 1

    def show(self, number: int) -> None:
        """Readers see a row from now on."""
        name, place = self.written[number]
        key = (self.name, str(name))
        seen = self._shown.setdefault(name, set())
        if place in seen:
            self.simulation.oracle.broken(Violation.TWICE, key, place)
        if key not in self.simulation.oracle.named:
            self.simulation.oracle.broken(Violation.UNDECIDED, key, place)
        seen.add(place)
        if len(seen) == self._sizes[name]:
            self.simulation.oracle.shown(key, (name.batch, name.slot, self.name, 2))

    def numbers_at(self, urls: Iterable[str]) -> list[int]:
        """Returns the rows in files, as Spark reads them.

        Raises:
            SparkError: If a file is gone.
        """
        found: list[int] = []
        for url in urls:
            data = self.store.kept.get(url.removeprefix("store:/"))
            if data is None:
                raise SparkError(f"PATH_NOT_FOUND: {url}")
            found += _numbers(data)
        return found

    def _changed(self, path: str, data: bytes | None) -> None:
        """A file is put or deleted. Rows that nobody has seen, and whose file is complete, must not be discarded.

        The exception is a call in which other rows are gone: a note says so, and then no commit begins with them.
        """
        if path.startswith(_BEGUN) and data is not None and data.startswith(LOST):
            for entry in entries_of(data.removeprefix(LOST), path):
                self._given_up.add(entry.name)
                self.simulation.oracle.lost((self.name, str(entry.name)))
        for folder in (_FATE, _WAITING):
            if not path.startswith(folder) or (folder == _FATE and data != _DISCARDED):
                continue
            text = path.removeprefix(folder)
            name = TransactionName.parse(text)
            is_there = data is None if folder == _WAITING else _WAITING + text in self.store.kept
            if (
                name is not None
                and name not in self._given_up
                and is_there
                and len(self._shown.get(name, ())) < self._sizes[name]
            ):
                self.simulation.oracle.aborted((self.name, text))


class _Writer(Writer):
    """The product's writer, driven through the frame's calls."""

    system: Staged

    def __init__(self, system: Staged, owner: Owner, batch: int, slot: int, copy: int) -> None:
        super().__init__(system)
        context = WriterContext(owner=owner, batch=batch, slot=slot, copy=f"{copy}")
        self._writer = WriteAheadWriter(system.folder, system.prefix, context)
        self._places = 0

    def begin(self) -> None:
        self._writer.begin()

    def write(self, parts: int) -> None:
        self.system.simulation.stop_here()
        for _ in range(parts * self.rows * ROWS // 2):
            number = self.system.number_of(self._writer._name, self._places)
            self._places += 1
            self._writer.write(number)

    def prepare(self) -> Mapping[str, Scalar]:
        return self._writer.prepare()

    def abort(self) -> None:
        self.left = True
        self._writer.abort()

    def close(self) -> None:
        self._writer.close()


# --- instead of Parquet -----------------------------------------------------------------------------------------------


class _RowsFile:
    """`RowsFile`: a list of numbers."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self._numbers: list[int] = []

    def write(self, number: int) -> None:
        self._numbers.append(number)

    def seal(self) -> tuple[int, str]:
        data = json.dumps(self._numbers).encode()
        self.file.write(data)
        return len(data), data.decode()

    def close(self) -> None:
        pass


def _numbers(data: bytes) -> list[int]:
    found: list[int] = json.loads(data)
    return found


def _check(file: BinaryIO, size: int, checksum: str) -> None:
    if (len(data := file.read()), data.decode()) != (size, checksum):
        raise AssertionError("the rows are others than were sealed")
    file.seek(0)


def _whole(file: BinaryIO) -> Any:
    rows = len(_numbers(file.read()))
    file.seek(0)
    return SimpleNamespace(metadata=SimpleNamespace(num_rows=rows))


def read(files: Sequence[BinaryIO], taken: list[int]) -> Iterator[pa.RecordBatch]:
    """Returns the rows of files, one file at a time, with the columns of a message."""
    for file in files:
        rows = _batch(tuple(_numbers(file.read())))
        taken.append(rows.num_rows)
        yield rows


@lru_cache(10_000)
def _batch(numbers: tuple[int, ...]) -> pa.RecordBatch:
    texts = [b"%0*d" % (WIDTH, number) for number in numbers]
    return pa.record_batch({"message": texts, "value": texts})


# --- instead of threads -----------------------------------------------------------------------------------------------


class _Thread:
    """A thread for calls. It dies with its driver, and continues if the driver has only ended."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], name: str, daemon: bool) -> None:
        self._work = lambda: target(*args)

    def start(self) -> None:
        simulation = UNDER_WAY[0]
        driver = simulation.current
        if simulation.peace or driver is None:
            self._work()
            return
        thread = simulation.start(f"{driver.name}, call", self._work, lambda: simulation.kill(driver))
        driver.also_on_death(lambda: simulation.kill(thread))


def _wait(futures: Iterable[Future[Any]], timeout: float) -> None:
    """Waits for calls, and sometimes gives up."""
    simulation, waiting = UNDER_WAY[0], list(futures)

    def done() -> bool:
        return all(one.done() for one in waiting)

    if not done() and simulation.chance("paused"):
        simulation.note("slow call")
        simulation.let_others_go_on()
        simulation.clock_s += timeout
    elif not done():
        simulation.wait(done)


_text_of = lru_cache(10_000)(text_of)
_entries_of = lru_cache(10_000)(entries_of)
_TEMPORARY = SimpleNamespace(TemporaryFile=lambda *_, **__: io.BytesIO())

REPLACED: tuple[tuple[str, str, Any], ...] = (
    ("writer", "RowsFile", _RowsFile),
    ("writer", "secrets", SimpleNamespace(token_hex=lambda _: f"{UNDER_WAY[0].nonce():012x}")),
    ("folder", "tempfile", _TEMPORARY),
    *((module, "text_of", lambda entries: _text_of(tuple(entries))) for module in ("ledger", "folder")),
    *((module, "entries_of", lambda data, where: list(_entries_of(data, where))) for module in ("ledger", "folder")),
    ("application", "check", _check),
    ("application", "pq", SimpleNamespace(ParquetFile=_whole)),
    ("application", "read", read),
    ("application", "threading", SimpleNamespace(Thread=_Thread)),
    ("application", "wait", _wait),
)
"""Replacements for the product's modules for waiting rows."""
