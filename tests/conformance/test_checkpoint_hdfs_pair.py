"""A checkpoint on HDFS with two name nodes, of which now one is active and now the other."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from conformance.checkpoint_suite import CheckpointSuite, raced
from eventually import LIMIT_S, eventually
from hdfs_pair import HdfsPair
from jvm import bare_jvm, hadoop_files
from shared_servers import USES_HDFS
from sparkonce.checkpoint.files import CheckpointFiles, Landed, PutUnknownError, Taken
from sparkonce.checkpoint.hdfs import HdfsFiles
from sparkonce.driver.outage import Outage, is_store_outage
from sparkonce.durable import is_outage
from sparkonce.errors import SparkonceError

pytestmark = [USES_HDFS, pytest.mark.slow]

TESTS = str(Path(__file__).parents[1])
EVERY_S = 3.0
"""The time between two fail-overs: without any, nobody gets anything done."""
T = TypeVar("T")


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    with bare_jvm() as started:
        yield started


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsPair]:
    try:
        opened = HdfsPair(tmp_path_factory.mktemp("pair"))
    except SparkonceError as error:
        pytest.skip(f"HDFS cannot be had here: {error.message}")
    with opened:
        yield opened


def new_url() -> str:
    return f"{HdfsPair.url}/checkpoints/{secrets.token_hex(6)}"


class Patient(CheckpointFiles):
    """Waits for a store that is away, as a run does."""

    def __init__(self, files: CheckpointFiles) -> None:
        self.files = files

    def _waited(self, call: Callable[[], T]) -> T:
        return Outage(LIMIT_S).retry(call, again=is_store_outage)

    @property
    def location(self) -> str:
        return self.files.location

    def read(self, path: str) -> bytes | None:
        return self._waited(lambda: self.files.read(path))

    def names(self, folder: str) -> Sequence[str]:
        return self._waited(lambda: self.files.names(folder))

    def put(self, path: str, data: bytes) -> Landed | Taken:
        return self._waited(lambda: self.files.put(path, data))

    def replace(self, path: str, data: bytes) -> None:
        self._waited(lambda: self.files.replace(path, data))

    def delete(self, paths: Iterable[str]) -> None:
        given = list(paths)
        self._waited(lambda: self.files.delete(given))

    def sync(self, folder: str) -> None:
        self._waited(lambda: self.files.sync(folder))

    def check(self) -> None:
        self.files.check()

    def inside(self, folder: str) -> Patient:
        return Patient(self.files.inside(folder))


@contextmanager
def meanwhile(change: Callable[[], object], every_s: float = 0.0) -> Iterator[list[int]]:
    """Makes a change again and again. Gives a list that grows by each."""
    changes: list[int] = []
    failed: list[BaseException] = []
    over = threading.Event()

    def work() -> None:
        try:
            while not over.is_set():
                change()
                changes.append(len(changes))
                over.wait(every_s)
        except BaseException as error:  # noqa: BLE001 - the test gets it
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield changes
    finally:
        over.set()
        thread.join(120)
    assert not failed, failed


class WhileNameNodesChange(CheckpointSuite):
    """The log's suite, while the active name node becomes the standby, all the time."""

    @pytest.fixture(autouse=True)
    def _changing(self, pair: HdfsPair) -> Iterator[None]:
        with meanwhile(pair.fail_over, EVERY_S) as changes:
            yield
            eventually(lambda: changes, "a fail-over")


class TestHadoop(WhileNameNodesChange):
    @pytest.fixture
    def files(self, pair: HdfsPair, jvm: Any) -> CheckpointFiles:
        self.jvm, self.settings = jvm, pair.settings
        return Patient(hadoop_files(jvm, new_url(), pair.settings))

    def another(self, files: CheckpointFiles) -> CheckpointFiles:
        return Patient(hadoop_files(self.jvm, files.location, self.settings))

    def opening(self, files: CheckpointFiles) -> str:
        return (
            f"sys.path.insert(0, {TESTS!r})\nfrom conformance.test_checkpoint_hdfs_pair import *\nopened = bare_jvm()\n"
            f"files = Patient(hadoop_files(opened.__enter__(), {files.location!r}, {self.settings!r}))"
        )


class TestNative(WhileNameNodesChange):
    @pytest.fixture
    def files(self, pair: HdfsPair) -> CheckpointFiles:
        self.settings = pair.settings
        return Patient(HdfsFiles(new_url(), pair.settings))

    def another(self, files: CheckpointFiles) -> CheckpointFiles:
        return Patient(HdfsFiles(files.location, self.settings))

    def opening(self, files: CheckpointFiles) -> str:
        return (
            f"sys.path.insert(0, {TESTS!r})\nfrom conformance.test_checkpoint_hdfs_pair import *\n"
            f"files = Patient(HdfsFiles({files.location!r}, {self.settings!r}))"
        )


def found_at_last(files: CheckpointFiles, name: str) -> bytes | None:
    """Asks until there is an answer."""

    def ask() -> list[bytes | None]:
        with suppress(OSError):
            return [files.read(name)]
        return []

    return eventually(ask, f"{name} can be asked for")[0]


def killed(pair: HdfsPair) -> None:
    pair.active.kill()
    pair.take_over()
    pair.restart_other()


def frozen(pair: HdfsPair) -> None:
    """The old one wakes up later, and believes for a moment that it is the active one."""
    old = pair.active
    old.pause()
    pair.take_over()
    old.resume()
    old.restart()


@pytest.mark.parametrize("how", [killed, frozen])
def test_races_while_the_active_name_node_dies(pair: HdfsPair, jvm: Any, how: Callable[[HdfsPair], None]) -> None:
    """Whoever was told that its put landed finds it, and nobody else was told so."""
    url = new_url()
    racers: list[CheckpointFiles] = [
        *(hadoop_files(jvm, url, pair.settings) for _ in range(2)),
        *(HdfsFiles(url, pair.settings) for _ in range(2)),
    ]
    answers: dict[str, list[Any]] = {}
    with meanwhile(lambda: how(pair)) as changes:
        while len(changes) < 4:
            name = f"races/{len(answers)}"
            answers[name] = raced(
                [lambda one=one, side=side: one.put(name, b"%d" % side) for side, one in enumerate(racers)]  # type: ignore[misc]  # noqa: B023
            )
    standing = {name: found_at_last(racers[0], name) for name in answers}
    told = [answer for found in answers.values() for answer in found]
    unknown, refused = (sum(isinstance(one, kind) for one in told) for kind in (PutUnknownError, OSError))
    print(  # noqa: T201 - for docs/operations.md, with -s
        f"{how.__name__}: {len(answers)} races, {len(changes)} fail-overs, {told.count(Landed())} landed, {unknown} "
        f"unknown, {refused} refused"
    )
    for name, found in answers.items():
        winners = [b"%d" % side for side, answer in enumerate(found) if answer == Landed()]
        own = [b"%d" % side for side, one in enumerate(found) if one == Taken(standing=b"%d" % side)]
        doubted = [b"%d" % side for side, one in enumerate(found) if isinstance(one, PutUnknownError)]
        nobody = [None] if not winners and not own else []
        assert standing[name] in winners + own + doubted + nobody, (name, found)
        assert set(winners) <= {standing[name]}, (name, found)
        for answer in found:
            assert not isinstance(answer, Taken) or answer.standing == standing[name]
            assert not isinstance(answer, OSError) or is_outage(answer), answer
