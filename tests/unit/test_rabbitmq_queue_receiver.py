"""What is stored from a queue and when it is acknowledged. The receiver is killed at each step, on a model queue."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.errors import ConfigurationError, CorruptRecordError, NewerFormatError, SupersededError
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError, Taken
from sparkonce_rabbitmq.queue.messages import QueueMessage, id_of
from sparkonce_rabbitmq.queue.progress import NEXT, QUEUE, FinishedSegments, Progress
from sparkonce_rabbitmq.queue.receiver import Acknowledge, Memory, Receiver, ReceiverSettings
from sparkonce_rabbitmq.queue.segments import Segment, Segments

KEPT = "sparkonce-queue/orders"
STEPS = 400
"""More steps than any run of these tests takes."""


class KilledError(Exception):
    """Simulates the death of the process."""


def message(name: str, **more: object) -> QueueMessage:
    return QueueMessage(**{"value": name.encode(), "message_id": name, "properties": {}, "headers": {}, **more})


class Queue:
    """A model of a queue with one consumer: what is ready, and what is delivered and not acknowledged."""

    def __init__(self, names: Sequence[str]) -> None:
        self.ready = deque(names)
        self.unacked: dict[int, str] = {}
        self._tag = 0

    def deliver(self) -> tuple[int, str]:
        self._tag += 1
        self.unacked[self._tag] = self.ready.popleft()
        return self._tag, self.unacked[self._tag]

    def ack(self, tag: int) -> None:
        self.unacked = {one: name for one, name in self.unacked.items() if one > tag}

    def requeue(self) -> None:
        self.ready.extendleft(reversed(self.unacked.values()))
        self.unacked = {}

    def is_empty(self) -> bool:
        return not self.ready and not self.unacked


class MemoryStore(CheckpointFiles):
    """A store in memory. Its client can be set to die before or after one of its puts.

    Args:
        outer: The store of the folder around; None for the first one.
        folder: The path within it.
    """

    location = "memory"

    def __init__(self, outer: MemoryStore | None = None, folder: str = "") -> None:
        self._outer, self._folder = outer, folder
        self.kept: dict[str, bytes] = {}
        self.puts = 0
        self.die_at = (0, "")
        self.is_unsure = False

    def read(self, path: str) -> bytes | None:
        return self._outer.read(self._folder + path) if self._outer else self.kept.get(path)

    def names(self, folder: str) -> Sequence[str]:
        if self._outer:
            return self._outer.names(self._folder + folder)
        return [path.removeprefix(f"{folder}/") for path in self.kept if path.startswith(f"{folder}/")]

    def put(self, path: str, data: bytes) -> Landed | Taken:
        if self._outer:
            return self._outer.put(self._folder + path, data)
        self.puts += 1
        if self.die_at == (self.puts, "before"):
            raise KilledError
        taken = self.kept.get(path)
        self.kept.setdefault(path, data)
        if self.die_at == (self.puts, "after"):
            raise KilledError
        if self.is_unsure:
            raise PutUnknownError("no answer")
        return Landed() if taken is None else Taken(standing=taken)

    def replace(self, path: str, data: bytes) -> None:
        raise NotImplementedError

    def delete(self, paths: Iterable[str]) -> None:
        for path in list(paths):
            if self._outer:
                self._outer.delete([self._folder + path])
            else:
                self.kept.pop(path, None)

    def check(self) -> None:
        raise NotImplementedError

    def inside(self, folder: str) -> MemoryStore:
        return MemoryStore(self, f"{folder}/")


class World:
    """A driver with its receiver, and a store and a queue that outlive it.

    Args:
        store: The checkpoint store.
        queue: The queue.
        acknowledge: See `ReceiverSettings`.
        prefetch: The maximum number of unacknowledged messages.
    """

    def __init__(
        self, store: MemoryStore, queue: Queue, acknowledge: Acknowledge = "finished", *, prefetch: int = 7
    ) -> None:
        self.store, self.queue, self.prefetch = store, queue, prefetch
        self.segments = Segments(store.inside(KEPT))
        self.identity = self.segments.identity("message_id")
        settings = ReceiverSettings(acknowledge=acknowledge, remember=10, most_ahead=9, segment_rows=3, linger_s=0)
        self.receiver = Receiver(self.segments, Progress(store, self.identity), settings)

    def run(self) -> Iterator[str]:
        """Runs until everything is finished and acknowledged. Yields the name of each step before the step.

        Batches run only in every second round, so that messages are stored ahead of them.
        """
        yield "claim"
        self.receiver.claim()
        yield from self.repeat()
        begin = self.receiver.begin()
        for turn in range(STEPS):
            while self.queue.ready and len(self.queue.unacked) < self.prefetch and not self.receiver.is_full():
                yield "deliver"
                tag, name = self.queue.deliver()
                self.receiver.take(tag, message(name))
            yield "keep"
            self.receiver.keep_due()
            end = self.receiver.end(begin, 6)
            if end > begin and turn % 2:
                yield "plan"
                self.record("offsets", end)
                yield "finish"
                self.record("commits", end)
                begin = end
            yield "look"
            self.receiver.poll()
            yield "acknowledge"
            if (tag := self.receiver.acknowledge()) is not None:
                self.queue.ack(tag)
            if self.queue.is_empty() and self.receiver.ahead() == 0:
                return
        raise AssertionError(f"not finished: {self.queue.ready}, {self.queue.unacked}")

    def repeat(self) -> Iterator[str]:
        """Finishes a batch that was planned, as Spark does after a restart."""
        planned = len(self.store.names("offsets"))
        if planned > len(self.store.names("commits")):
            self.rows(planned - 1)
            yield "finish again"
            self.store.put(f"commits/{planned - 1}", b"v1\n{}")
            self.receiver.poll()

    def record(self, log: str, end: int) -> None:
        position = json.dumps({QUEUE: self.identity, NEXT: end})
        self.store.put(f"{log}/{len(self.store.names(log))}", f"v1\n{{}}\n{position}\n".encode())

    def rows(self, batch: int) -> list[str]:
        """Returns the rows that a batch reads."""
        return [name for number in range(self.end(batch - 1), self.end(batch)) for name in self.names(number)]

    def end(self, batch: int) -> int:
        data = self.store.read(f"offsets/{batch}")
        return json.loads(data.splitlines()[-1])[NEXT] if data else 0

    def names(self, number: int) -> list[str]:
        return [bytes(one).decode() for one in self.segments.read(number).table().column("value").to_pylist()]


class Watched:
    """Collects the messages of planned batches, before anything is deleted."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}

    def poll(self, world: World) -> None:
        batch = len(world.store.names("offsets")) - 1
        if batch >= 0:
            rows = world.rows(batch)
            assert self.batches.setdefault(batch, rows) == rows, "a replay reads the same"

    def rows(self) -> Counter[str]:
        return Counter(name for rows in self.batches.values() for name in rows)


NAMES = [f"m{number}" for number in range(13)]


def finish(world: World, watched: Watched, die_at: int | None = None) -> int:
    """Runs a world that is killed before the given step, and returns the number of steps."""
    steps = 0
    try:
        for _ in world.run():
            watched.poll(world)
            if steps == die_at:
                raise KilledError
            steps += 1
        watched.poll(world)
    finally:
        world.queue.requeue()
    return steps


@pytest.mark.parametrize("acknowledge", ["finished", "stored"])
def test_a_kill_before_any_step_loses_and_doubles_nothing(acknowledge):
    steps = finish(World(MemoryStore(), Queue(NAMES), acknowledge), Watched())
    assert steps > 30
    for step in range(steps):
        store, queue, watched = MemoryStore(), Queue(NAMES), Watched()
        with pytest.raises(KilledError):
            finish(World(store, queue, acknowledge), watched, die_at=step)
        finish(World(store, queue, acknowledge), watched)
        assert watched.rows() == Counter(NAMES), step
        assert queue.is_empty()


@pytest.mark.parametrize("acknowledge", ["finished", "stored"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_put_loses_and_doubles_nothing(when, acknowledge):
    tried = MemoryStore()
    finish(World(tried, Queue(NAMES), acknowledge), Watched())
    for change in range(2, tried.puts + 1):
        store, queue, watched = MemoryStore(), Queue(NAMES), Watched()
        store.die_at = (change, when)
        with pytest.raises(KilledError):
            finish(World(store, queue, acknowledge), watched)
        store.die_at = (0, "")
        finish(World(store, queue, acknowledge), watched)
        assert watched.rows() == Counter(NAMES), change


def test_acknowledgements_that_never_arrive_bring_nothing_twice():
    store, queue, watched = MemoryStore(), Queue(NAMES), Watched()
    finish(World(store, queue), watched)
    queue.ready.extend(NAMES[-7:])
    again = World(store, queue)
    finish(again, watched)
    assert watched.rows() == Counter(NAMES)
    assert queue.is_empty()


def test_stored_messages_are_acknowledged_until_too_many_wait():
    world = World(MemoryStore(), Queue(NAMES), "stored")
    world.receiver.claim()
    for _ in range(4):
        for _ in range(3):
            world.receiver.take(*((found := world.queue.deliver())[0], message(found[1])))
        world.receiver.keep_due()
        if (tag := world.receiver.acknowledge()) is not None:
            world.queue.ack(tag)
    assert list(world.queue.unacked.values()) == NAMES[9:12], "nine may wait; three more are kept, and not given back"


def test_finished_segments_are_deleted_and_their_ids_stay_for_a_while():
    many = [f"m{number}" for number in range(200)]
    world = World(MemoryStore(), Queue(many))
    finish(world, Watched())
    kept = [one for _, ids in world.segments.recorded_ids() for one in ids]
    assert len(world.segments.numbers()) < 30
    assert 10 <= len(kept) < 100
    again = World(world.store, Queue(many[-5:]))
    again.receiver.claim()
    last = id_of(message(many[-1]), "message_id")
    assert again.receiver._memory.find(last) is not None

    memory = Memory(2)
    for number in range(6):
        memory.add([b"%d" % number], number)
    memory.forget(3)
    assert [memory.find(b"%d" % number) for number in range(6)] == [None, None, None, 3, 4, 5]


def test_an_older_receiver_stops_and_keeps_nothing_more():
    store, queue = MemoryStore(), Queue(NAMES)
    older, newer = World(store, queue), World(store, queue)
    older.receiver.claim()
    older.receiver.take(1, message("m0"))
    newer.receiver.claim()
    with pytest.raises(SupersededError, match="Another run is receiving from the queue"):
        older.receiver.keep_due()
    with pytest.raises(SupersededError):
        older.receiver.poll()
    assert newer.receiver.end(0, None) == 0


def test_a_batch_that_others_have_finished_is_not_planned_again():
    store = MemoryStore()
    World(store, Queue([])).receiver.claim()
    finish(World(store, Queue([f"m{number}" for number in range(200)])), Watched())
    started = World(store, Queue([]))
    started.receiver.claim()
    with pytest.raises(SupersededError):
        started.receiver.end(0, None)


def test_a_put_that_lands_where_segments_were_deleted_is_noticed():
    store, queue = MemoryStore(), Queue(NAMES)
    older = World(store, queue)
    older.receiver.claim()
    older.receiver.take(1, message("late"))
    newer = World(store, Queue([f"m{number}" for number in range(200)]))
    finish(newer, Watched())
    assert 1 not in newer.segments.numbers(), "its number is free again"
    with pytest.raises(SupersededError):
        older.receiver.keep_due()
    assert 1 not in newer.segments.numbers(), "below a gap it is no segment"


def test_a_claim_is_not_the_last_to_be_deleted_so_that_no_late_put_joins_the_others():
    store, queue = MemoryStore(), Queue(NAMES)
    older, newer = World(store, queue), World(store, queue)
    for world, first, end in ((older, 0, 16), (newer, 16, 18)):
        world.receiver.claim()
        for number in range(first, end):
            world.receiver.take(number, message(f"n{number}"))
            world.receiver.keep()
    progress: Any = SimpleNamespace(poll=lambda: FinishedSegments(below=19, spare=18))
    newer.receiver._progress = progress
    newer.receiver.poll()
    assert newer.segments.numbers() == [17, 18, 19], "17 is a claim"
    older.receiver.take(99, message("late"))
    with pytest.raises(SupersededError):
        older.receiver.keep()
    third = World(store, queue)
    third.receiver._progress = progress
    third.receiver.claim()
    assert third.receiver._memory.find(id_of(message("late"), "message_id")) is None


def test_a_put_without_an_answer_is_asked_again_with_the_same_messages():
    store = MemoryStore()
    world = World(store, Queue(NAMES))
    world.receiver.claim()
    world.receiver.take(1, message("m0"))
    store.is_unsure = True
    with pytest.raises(OSError, match="no answer"):
        world.receiver.keep_due()
    world.receiver.disconnected()
    store.is_unsure = False
    world.receiver.settle()
    assert [world.names(1), world.receiver.newest()] == [["m0"], 2]


def test_a_segment_that_is_missing_or_changed_is_refused():
    world = World(MemoryStore(), Queue(NAMES))
    finish(world, Watched())
    newest = world.segments.numbers()[-1]
    path = f"{KEPT}/segments/{newest:012}"
    data = world.store.read(path)
    assert data is not None
    with pytest.raises(CorruptRecordError, match="is missing: it holds messages"):
        world.segments.read(newest + 1)
    with pytest.raises(CorruptRecordError, match="its checksum is wrong"):
        Segment.decode(data[:-1] + bytes([data[-1] ^ 1]), path)
    with pytest.raises(NewerFormatError):
        Segment.decode(data.replace(b"sparkonce-queue\x01", b"sparkonce-queue\x02"), path)
    world.store.delete(f"{KEPT}/segments/{name}" for name in world.store.names(f"{KEPT}/segments"))
    with pytest.raises(CorruptRecordError, match="messages that were received and not yet read are missing"):
        World(world.store, Queue([])).receiver.claim()


def test_an_older_copy_of_what_is_kept_is_refused():
    """Whatever it put next would count as finished: it would be acknowledged without being read by any batch."""
    world = World(MemoryStore(), Queue(NAMES))
    finish(world, Watched())
    newest = world.segments.numbers()[-1]
    world.store.delete([f"{KEPT}/segments/{newest:012}"])
    with pytest.raises(CorruptRecordError, match=f"ends before segment {newest}, and batches have read up to"):
        World(world.store, Queue(NAMES)).receiver.claim()

    world = World(MemoryStore(), Queue(NAMES))
    with pytest.raises(ConfigurationError, match="identify='digest', and the query began with 'message_id'"):
        world.segments.identity("digest")


@pytest.mark.parametrize(
    "other",
    [{"value": b"x"}, {"exchange": "e"}, {"routing_key": "r"}, {"headers": {"h": 1}}, {"properties": {"type": "t"}}],
)
def test_a_digest_is_of_all_that_a_publisher_has_set(other):
    plain = message("m")
    again = message("m", redelivered=True, headers={"x-delivery-count": 1})  # as redelivered by a quorum queue
    assert id_of(plain, "digest") == id_of(again, "digest")
    assert id_of(plain, "digest") != id_of(message("m", **other), "digest")


def test_a_message_that_nothing_identifies_is_refused():
    with pytest.raises(ConfigurationError, match="identify=message_id gives None"):
        id_of(message("m", message_id=None), "message_id")

    def header(one: QueueMessage) -> str:
        return one.headers.get("id", "")

    with pytest.raises(ConfigurationError, match="header gives ''"):
        id_of(message("m"), header)
    assert id_of(message("m", headers={"id": "7"}), header) == id_of(message("7"), "message_id")
