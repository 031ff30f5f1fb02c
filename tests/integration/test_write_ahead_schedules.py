"""Rows on a store without renames: every schedule of two processes, with few switches, kills, and puts that come late.

Processes are greenlets that stop before each request to the store. A schedule names who goes on where somebody else
could; all schedules with at most `SWITCHES` switches are tried, and with each of them a kill before any request, after
it, or with the request still on its way: it is then carried out last of all.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pytest
from greenlet import getcurrent, greenlet

from integration.write_ahead_scene import QUERY, numbers, owner
from sparkonce import WriteAheadSink
from sparkonce.checkpoint.files import CheckpointFiles, Landed, Taken
from sparkonce.errors import PrepareError
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import COMMITTED, Finished, Outcome
from sparkonce.sink import WriterContext
from sparkonce.sinks.write_ahead.calls import Calls, Job
from sparkonce.sinks.write_ahead.stored import StoredFolder
from sparkonce.write_ahead import Applies, ApplyToken

SWITCHES = 2
KILLS = ("before", "after", "late")


@dataclass
class Memory(CheckpointFiles):
    """A store in memory. Its clients stop before each request."""

    kept: dict[str, bytes] = field(default_factory=dict)
    prefix: str = "store"

    @property
    def location(self) -> str:
        return self.prefix

    def _ask(self, request: Callable[[], Any], *, changes: bool = False) -> Any:
        actor = getcurrent()
        if isinstance(actor, Actor):
            actor.wait(request if changes else None)
        answer = request()
        if isinstance(actor, Actor):
            actor.answered()
        return answer

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}"

    def read(self, path: str) -> bytes | None:
        return self._ask(lambda: self.kept.get(self._key(path)))  # type: ignore[no-any-return]

    def names(self, folder: str) -> Sequence[str]:
        start = f"{self._key(folder)}/"
        keys = self._ask(lambda: [key for key in self.kept if key.startswith(start)])
        return [key[len(start) :] for key in keys]

    def put(self, path: str, data: bytes) -> Landed | Taken:
        key = self._key(path)

        def request() -> Landed | Taken:
            if key in self.kept:
                return Taken(standing=self.kept[key])
            self.kept[key] = data
            return Landed()

        return self._ask(request, changes=True)  # type: ignore[no-any-return]

    def replace(self, path: str, data: bytes) -> None:
        self._ask(lambda: self.kept.update({self._key(path): data}), changes=True)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._ask(lambda path=path: self.kept.pop(self._key(path), None), changes=True)

    def check(self) -> None:
        raise NotImplementedError

    def inside(self, folder: str) -> Memory:
        return Memory(self.kept, self._key(folder))


class KilledError(BaseException):
    pass


class Actor(greenlet):
    """A process. It can be killed at its request of some number."""

    def __init__(self, work: Callable[[], Any], killed_at: int = -1, how: str = "") -> None:
        super().__init__(self._work)
        self.work, self.killed_at, self.how = work, killed_at, how
        self.requests = 0
        self.result: Any = None
        self.late: Callable[[], Any] | None = None

    def _work(self) -> None:
        try:
            self.result = self.work()
        except KilledError as error:
            self.result = error
        except PrepareError as error:
            self.result = error

    def wait(self, change: Callable[[], Any] | None) -> None:
        self.parent.switch()
        self.requests += 1
        if self.requests == self.killed_at and self.how != "after":
            self.late = change if self.how == "late" else None
            raise KilledError

    def answered(self) -> None:
        if self.requests == self.killed_at and self.how == "after":
            raise KilledError


def play(actors: Sequence[Actor], switches: Sequence[int]) -> None:
    """Lets one go on after the other, and the next one take over at each of these steps."""
    turn = steps = 0
    while any(not actor.dead for actor in actors):
        if steps in switches or actors[turn].dead:
            turn = (turn + 1) % len(actors)
            if actors[turn].dead:
                turn = (turn + 1) % len(actors)
        actors[turn].switch()
        steps += 1
    for actor in actors:
        if actor.late is not None:
            actor.late()


class World:
    """A sink on a store, and what its function was given."""

    def __init__(self, per: str = "slot") -> None:
        self.per = per
        self.store = Memory()
        self.rows: Counter[int] = Counter()
        self.tokens: set[str] = set()
        self.facts = self.sink().preflight(QUERY, None)

    def again(self) -> World:
        """The same one, before anything was done, with the transactions that were prepared."""
        other = copy(self)
        other.store, other.rows, other.tokens = Memory(dict(self.store.kept)), Counter(), set()
        return other

    def sink(self) -> WriteAheadSink:
        sink = WriteAheadSink(
            self.apply,
            applies=Applies.TRANSACTIONAL,
            is_applied=lambda token: token.id in self.tokens,
            per=self.per,  # type: ignore[arg-type]
            parallel=1,
        )
        sink.use_checkpoint(self.store)
        return sink

    def apply(self, rows: pa.RecordBatchReader, token: ApplyToken) -> None:
        given = [number for batch in rows for number in batch.column("number").to_pylist()]
        if token.id not in self.tokens:
            self.tokens.add(token.id)
            self.rows.update(given)

    def writer(self, slot: int = 0) -> Any:
        who = owner()
        whose = type(who)(query=who.query, token=who.token, facts=self.facts)
        writer = self.sink().writer(WriterContext(owner=whose, batch=0, slot=slot, copy="1.1.0"))
        writer.begin()
        writer.write(pa.record_batch({"number": numbers(0, [slot])}))
        return writer

    def prepare(self, slot: int = 0, writer: Any = None) -> Handle:
        writer = writer or self.writer(slot)
        return Handle(sink="write-ahead", slot=slot, rows=3, transaction=transaction_fields(writer.prepare()))

    def commit(self, *handles: Handle) -> list[Finished]:
        return list(self.sink().committer().commit(handles))

    def abort(self, *handles: Handle) -> list[Finished]:
        return list(self.sink().committer().abort(handles))

    def sweep(self) -> None:
        committer = self.sink().committer()
        committer.abort(committer.list_lingering([owner()]))

    def waiting(self) -> list[str]:
        return [key for key in self.store.kept if "/rows/" in key]


def inline(calls: Calls, jobs: dict[str, Job], wait_s: float) -> dict[str, Finished]:
    return {name: job() for name, job in jobs.items()}


@pytest.fixture(autouse=True)
def _without_threads(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(Calls, "run", inline)
    caplog.set_level(logging.ERROR, "sparkonce")


class Scene(Protocol):
    """Takes a world and handles of these slots; returns what is done at once, and the check of its results."""

    slots: Sequence[int]
    __name__: str

    def __call__(
        self, world: World, *handles: Handle
    ) -> tuple[list[Callable[[], Any]], Callable[[Sequence[Any]], None]]: ...


def prepared(*slots: int) -> Callable[[Callable[..., Any]], Scene]:
    def marked(scene: Any) -> Scene:
        scene.slots = slots
        return scene  # type: ignore[no-any-return]

    return marked


def schedules(lengths: Sequence[int], *, kills: bool) -> Iterator[tuple[tuple[int, ...], tuple[int, int, str] | None]]:
    """Yields switches, and who is killed at which request, and how."""
    steps = range(sum(lengths) + len(lengths))
    for number in range(SWITCHES + 1):
        yield from ((some, None) for some in itertools.combinations(steps, number))
    if kills:
        for who, length in enumerate(lengths):
            for at, how in itertools.product(range(1, length + 1), KILLS):
                # The one that is killed begins, or the other one does, and is interrupted anywhere.
                yield from ((some, (who, at, how)) for some in [(), (0,), *((one,) for one in steps[1:])])


def run_all(scene: Scene, *, kills: bool = True, per: str = "slot") -> int:
    """Tries every schedule, and checks each."""

    first = World(per)
    handles = [first.prepare(slot) for slot in scene.slots]

    def once(switches: Sequence[int], kill: tuple[int, int, str] | None) -> list[int]:
        world = first.again()
        works, check = scene(world, *handles)
        actors = [
            Actor(work, *(kill[1:] if kill is not None and kill[0] == who else ())) for who, work in enumerate(works)
        ]
        play(actors, switches)
        try:
            check([actor.result for actor in actors])
        except AssertionError as error:
            raise AssertionError(f"switches at {switches}, kill {kill}: {error}") from error
        return [actor.requests for actor in actors]

    lengths = once((), None)
    tried = list(schedules(lengths, kills=kills))
    for switches, kill in tried:
        once(switches, kill)
    return len(tried)


def outcome(result: Any) -> Outcome | None:
    return None if isinstance(result, BaseException) else result[0].outcome


# --- the scenes -----------------------------------------------------------------------------------------------------


@prepared(0, 1)
def two_commits(world: World, *handles: Handle) -> Any:
    def check(results: Sequence[Any]) -> None:
        for result in results:
            if not isinstance(result, KilledError):
                assert {one.outcome for one in result} <= COMMITTED | {Outcome.RETRY}, result
        last = [one.outcome for one in world.commit(*handles)]
        assert set(last) <= COMMITTED, last
        assert world.rows == Counter(numbers(0, [0, 1]))
        assert [one.outcome for one in world.abort(*handles)] == [Outcome.ALREADY_COMMITTED] * 2
        assert world.waiting() == []

    return [lambda: world.commit(*handles), lambda: world.commit(*handles)], check


@prepared(0)
def a_commit_and_an_abort(world: World, handle: Handle) -> Any:
    def check(results: Sequence[Any]) -> None:
        committed, aborted = map(outcome, results)
        assert committed in {*COMMITTED, Outcome.LOST, Outcome.RETRY, None}
        assert aborted in {Outcome.ABORTED, Outcome.ALREADY_COMMITTED, Outcome.UNKNOWN, None}
        assert not (committed in COMMITTED and aborted is Outcome.ABORTED)
        assert (committed is not Outcome.LOST) or (aborted in {Outcome.ABORTED, None})
        late = world.commit(handle)[0].outcome
        assert late in {*COMMITTED, Outcome.LOST}
        assert (late is Outcome.LOST) == (world.rows == Counter())
        assert not (aborted is Outcome.ABORTED and late in COMMITTED)
        assert not (committed is Outcome.LOST and late in COMMITTED)
        assert world.rows in (Counter(), Counter(numbers(0, [0])))
        again = world.abort(handle)[0].outcome
        assert again is (Outcome.ABORTED if late is Outcome.LOST else Outcome.ALREADY_COMMITTED)
        assert world.waiting() == []

    return [lambda: world.commit(handle), lambda: world.abort(handle)], check


@prepared()
def a_writer_and_a_sweep(world: World) -> Any:
    """The sweep knows the name, as if it had listed the rows before they were gone from its view."""
    writer = world.writer()
    name = Handle(sink="write-ahead", slot=0, rows=0, transaction=transaction_fields({"name": str(writer._name)}))

    def check(results: Sequence[Any]) -> None:
        handle, aborted = results[0], outcome(results[1])
        assert aborted in {Outcome.ABORTED, None}
        writer.close()
        if isinstance(handle, Handle) and aborted is Outcome.ABORTED:
            assert world.commit(handle)[0].outcome is Outcome.LOST
            assert world.rows == Counter()
        world.sweep()
        assert world.waiting() == []
        if isinstance(handle, Handle):
            assert world.commit(handle)[0].outcome is Outcome.LOST

    return [lambda: world.prepare(writer=writer), lambda: world.abort(name)], check


@prepared(0, 0)
def a_commit_and_a_sweep_of_the_other_copy(world: World, handle: Handle, other: Handle) -> Any:
    """A copy of the same slot that lost: its rows are never given to the function."""

    def check(results: Sequence[Any]) -> None:
        assert outcome(results[1]) in {Outcome.ABORTED, None}
        assert world.commit(handle)[0].outcome in COMMITTED
        assert world.abort(other)[0].outcome is Outcome.ABORTED
        assert world.rows == Counter(numbers(0, [0]))
        assert world.waiting() == []

    return [lambda: world.commit(handle), lambda: world.abort(other)], check


SCENES: list[Scene] = [two_commits, a_commit_and_an_abort, a_writer_and_a_sweep, a_commit_and_a_sweep_of_the_other_copy]


def cases() -> Iterator[Any]:
    for scene, per in itertools.product(SCENES, ["slot", "batch"]):
        drawn = [pytest.mark.drawn(1, "schedules")] if scene is two_commits or per == "batch" else []
        yield pytest.param(scene, per, id=f"{scene.__name__}-{per}", marks=drawn)


@pytest.mark.parametrize(("scene", "per"), list(cases()))
def test_every_schedule(scene: Scene, per: str) -> None:
    assert run_all(scene, per=per) > 100


# --- broken ones ----------------------------------------------------------------------------------------------------


def discards_what_has_begun(folder: StoredFolder, name: Any) -> None:
    folder.files.replace(f"fate/{name}", b"discarded")
    folder.files.delete([f"rows/{name}"])


def takes_what_was_discarded(folder: StoredFolder, name: Any) -> bool:
    if not folder.files.exists(f"rows/{name}"):
        return False
    folder.files.replace(f"fate/{name}", b"started")
    return True


def keeps_what_was_discarded(folder: StoredFolder, name: Any, file: Any) -> bool:
    file.seek(0)
    folder.files.put_large(f"rows/{name}", file)
    return True


def lingers_without_discarded(folder: StoredFolder, wanted: Any) -> list[Any]:
    return [name for name in folder.names("rows") if wanted(name) and folder._fate(name) is None]


BROKEN = [
    (a_commit_and_an_abort, "discard", discards_what_has_begun),
    (a_commit_and_an_abort, "take", takes_what_was_discarded),
    (a_writer_and_a_sweep, "lingering", lingers_without_discarded),
]


@pytest.mark.parametrize(("scene", "method", "broken"), BROKEN, ids=lambda one: getattr(one, "__name__", one))
def test_a_broken_folder_is_caught(
    scene: Scene, method: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoredFolder, method, broken)
    with pytest.raises(AssertionError, match="switches at"):
        run_all(scene)
