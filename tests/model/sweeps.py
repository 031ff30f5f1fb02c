"""A run's sweeper and a sink: batches, losing attempts, time, failing sweeps and late requests, in every order.

A world consists of the sweeper's own state, which the product's `sweeping.step` advances, and the sink's open
transactions. All times are relative to now, so that worlds repeat. The driver around it is modeled too: it holds a lock
while a batch is in progress, and reports time to the state machine only while it does.

Left out: sinks that differ (a sweep covers all of them, and fails if one does), and what a run sweeps before its first
batch, which is in `model.world`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from sparkonce.protocol import sweeping as on
from sparkonce.protocol.effects import Sweep
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Run

OLDER, OWN, NEWER = (Run(token=Token(number, "0" * 8), query="q") for number in range(3))
SINK = "sink"
SLOW_S = 3.0
STEP_S = 2.0
SETTLED_WITHIN = 12


class Broken(str, Enum):
    TAKEN = "a transaction of a batch at work, or of a newer run, was aborted"
    LEFT = "what a loser has left open is swept no more, though the run lives"
    LEFT_AT_END = "a run ended normally, and left open what a loser had opened"
    HURRIED = "a sweep that failed was tried again after a pause that is no longer than the one before"


class Open(NamedTuple):
    """An open transaction: its owner, its generation of names, and whether a current or decided batch needs it."""

    run: int
    generation: int
    needed: bool


class World(NamedTuple):
    """The whole state.

    Attributes:
        machine: The sweeper's state.
        open: The sink's open transactions.
        at_work: The generation of names of the current batch, which holds the lock; None between batches.
        losing: True if the current batch may have a losing attempt.
        losers_s: How long losing attempts of finished batches may still open transactions.
        losers_of: The generation of their names.
        flights: The generations addressed by unanswered requests that may still arrive.
        pause_s: The pause after the last failed sweep; 0 if none has failed since a success.
        batches: How many batches may still begin.
        faults: How many more faults may happen.
        late: How many transactions losing attempts and tasks of older runs may still open.
        newer: True if a newer run has claimed the log.
        ended: True if the run has ended.
    """

    machine: on.Sweeping
    open: frozenset[Open] = frozenset()
    at_work: int | None = None
    losing: bool = False
    losers_s: float = 0.0
    losers_of: int = 0
    flights: frozenset[int] = frozenset()
    pause_s: float = 0.0
    batches: int = 0
    faults: int = 0
    late: int = 0
    newer: bool = False
    ended: bool = False


class Move(NamedTuple):
    """What happens, the resulting world, and what it violates."""

    label: str
    world: World
    broken: Broken | None = None


@dataclass(frozen=True, kw_only=True)
class Sweeps:
    """The moves within one bound.

    Attributes:
        every_s: The product's setting.
        in_background: True if there is a thread. Without one, the machine learns of time at the end of each batch.
        batches, faults, late: How many of each there may be.
        locked: True if the thread takes the lock.
        wanted: The violations to look for.
    """

    every_s: float = 10.0
    in_background: bool = True
    batches: int = 2
    faults: int = 2
    late: int = 2
    locked: bool = True
    wanted: frozenset[Broken] = frozenset(Broken)

    def first(self) -> World:
        machine = on.Sweeping(every_s=self.every_s, swept_s=0.0)
        return World(machine, batches=self.batches, faults=self.faults, late=self.late)

    def moves(self, world: World) -> Iterator[Move]:
        if world.ended:
            return
        yield from self._batch(world)
        yield from self._others(world)
        yield from self._time(world)
        if self.in_background and (world.at_work is None or not self.locked):
            yield from self._told(world, on.TimePassed(at_s=0.0), "the thread looks")
        if world.at_work is None:
            for move in self._told(world._replace(losers_s=0.0), on.Closed(in_order=not world.newer), "the run ends"):
                left = any(one.run == OWN.token.position for one in move.world.open)
                fair = not world.newer and move.world.faults == world.faults and left
                yield Move(move.label, self._ended(), move.broken or (Broken.LEFT_AT_END if fair else None))

    def _ended(self) -> World:
        return self.first()._replace(ended=True)

    def _batch(self, world: World) -> Iterator[Move]:
        machine, own = world.machine, OWN.token.position
        if world.at_work is None:
            if world.batches and not world.newer:
                generation = machine.generation(SINK)
                begun = world._replace(at_work=generation, batches=world.batches - 1)
                yield Move("a batch begins", _opening(begun, Open(own, generation, True)))
            return
        if world.late and not world.losing:
            expecting = world._replace(machine=_tell(machine, on.LosersExpected()), losing=True, late=world.late - 1)
            yield Move("a copy loses", _opening(expecting, Open(own, world.at_work, False)))
        if world.faults:
            yield from self._written_again(world._replace(faults=world.faults - 1))
            given_up = frozenset(one._replace(needed=False) if one.run == own else one for one in world.open)
            failed = world._replace(open=given_up, faults=world.faults - 1)
            for move in self._told(failed, on.BatchFailed(runs=(OWN,)), "the batch fails, and the run ends"):
                yield Move(move.label, self._ended(), move.broken)
        if world.newer:
            _tell(machine, on.Closed(in_order=False))
            yield Move("the batch finds a newer run", self._ended())
            return
        needed = frozenset(one for one in world.open if one.run == own and one.needed)
        done = world._replace(open=world.open - needed, at_work=None, losing=False)
        if world.losing:
            done = done._replace(losers_s=on.LOSERS_END_WITHIN_S, losers_of=world.at_work)
        done = done._replace(machine=_tell(machine, on.BatchDone(runs=(OLDER, OWN), at_s=0.0)))
        if self.in_background:
            yield Move("the batch is done", done)
        else:
            yield from self._told(done, on.TimePassed(at_s=0.0), "the batch is done")

    def _written_again(self, world: World) -> Iterator[Move]:
        """The write fails and is undone by a separate sweep, which may get no answer, before it is repeated."""
        undone = frozenset(one for one in world.open if one.run != OWN.token.position)
        machine = _tell(world.machine, on.LosersExpected())
        again = world._replace(machine=machine, open=undone, losing=True)
        for label, after in (("swept", again), ("not answered", _unanswered(again))):
            generation = after.machine.generation(SINK)
            begun = after._replace(at_work=generation)
            yield Move(f"the write is undone, {label}", _opening(begun, Open(OWN.token.position, generation, True)))

    def _others(self, world: World) -> Iterator[Move]:
        if world.late and world.losers_s > 0:
            late = world._replace(late=world.late - 1)
            yield Move("a loser opens", _opening(late, Open(OWN.token.position, world.losers_of, False)))
        if world.late:
            late = world._replace(late=world.late - 1)
            yield Move("an older run's task opens", _opening(late, Open(OLDER.token.position, 0, False)))
        if not world.newer:
            claimed = _opening(world._replace(newer=True), Open(NEWER.token.position, 0, True))
            yield Move("a newer run claims", claimed)
        for generation in world.flights:
            meant = (OWN.token.position, generation)
            ended = frozenset(one for one in world.open if (one.run, one.generation) == meant)
            after = world._replace(open=world.open - ended, flights=world.flights - {generation})
            yield Move("a request arrives late", after, _taken(ended))

    def _time(self, world: World) -> Iterator[Move]:
        machine = world.machine
        ahead = {STEP_S, world.losers_s, machine.next_s or 0.0}
        if machine.next_s is None and not world.losers_s and machine.swept_s <= -machine.every_s:
            return
        for passed_s in sorted(one for one in ahead if one > 0):
            yield Move(f"{passed_s:g} s pass", _later(world, passed_s))

    def _told(self, world: World, event: on.Event, label: str) -> Iterator[Move]:
        machine, effect = on.step(world.machine, event)
        world = world._replace(machine=machine)
        if effect is None:
            yield Move(label, world)
            return
        yield from self._swept(world, effect, label)

    def _swept(self, world: World, effect: Sweep, label: str) -> Iterator[Move]:
        """The sweep succeeds, immediately or slowly, or it fails, before it aborted anything or at an unknown point."""
        swept = frozenset(run.token.position for run in effect.runs)
        found = frozenset(one for one in world.open if one.run in swept)
        broken = _taken(found)
        clean = world._replace(open=world.open - found)
        yield _end(f"{label} and sweeps", clean, took_s=0.0, failed=False, broken=broken)
        slow = clean
        if world.late and world.losers_s > 0:
            slow = _opening(clean._replace(late=world.late - 1), Open(OWN.token.position, world.losers_of, False))
        yield _end(f"{label} and sweeps slowly", slow, took_s=SLOW_S, failed=False, broken=broken)
        if world.faults:
            faulty = world._replace(faults=world.faults - 1)
            yield _end(f"{label}, and the sink is away", faulty, took_s=SLOW_S, failed=True)
            if found:
                yield _end(f"{label}, and nothing is answered", _unanswered(faulty), took_s=0.0, failed=True)

    def settles(self, world: World) -> bool:
        """Returns True if everything open will be swept if no batch is in progress and nothing fails from now on."""
        world = self._let_be(world)
        own = any(one.run == OWN.token.position for one in world.open)
        # If a task of an older run opens a transaction late, it is swept after the next batch.
        machine = _tell(world.machine, on.BatchDone(runs=(OLDER, OWN), at_s=0.0))
        return not own and not self._let_be(world._replace(machine=machine)).open

    def _let_be(self, world: World) -> World:
        for _ in range(SETTLED_WITHIN):
            if not self.in_background:
                done = on.BatchDone(runs=(OLDER, OWN), at_s=0.0)
                world = world._replace(machine=_tell(world.machine, done))
            if world.machine.next_s is None:
                break
            world = _later(world, max(0.0, world.machine.next_s))
            world = next(self._told(world, on.TimePassed(at_s=0.0), "")).world
        return world


def search(sweeps: Sweeps) -> tuple[int, list[str], Broken | None]:
    """Visits every world, nearest first. Returns their number, and the path to the first violation."""
    first = sweeps.first()
    came_from: dict[World, tuple[World, str] | None] = {first: None}
    settles: dict[tuple[on.Sweeping, frozenset[Open]], bool] = {}
    layer = [first]
    while layer:
        following: list[World] = []
        for world in layer:
            for label, after, broken in sweeps.moves(world):
                if broken in sweeps.wanted:
                    return len(came_from), [*_way(came_from, world), label], broken
                if after in came_from:
                    continue
                came_from[after] = (world, label)
                following.append(after)
                if after.ended or after.newer or after.at_work is not None or Broken.LEFT not in sweeps.wanted:
                    continue
                key = (after.machine, after.open)
                if key not in settles:
                    settles[key] = sweeps.settles(after)
                if not settles[key]:
                    return len(came_from), _way(came_from, after), Broken.LEFT
        layer = following
    return len(came_from), [], None


def _way(came_from: Mapping[World, tuple[World, str] | None], world: World) -> list[str]:
    labels: list[str] = []
    while (step := came_from[world]) is not None:
        world, label = step
        labels.append(label)
    return labels[::-1]


def _tell(machine: on.Sweeping, event: on.Event) -> on.Sweeping:
    """Returns the violation of a world that never requests a sweep."""
    after, effect = on.step(machine, event)
    if effect is not None:
        raise AssertionError(f"{event} asks for a sweep")
    return after


def _opening(world: World, one: Open) -> World:
    return world._replace(open=world.open | {one})


def _taken(ended: frozenset[Open]) -> Broken | None:
    return Broken.TAKEN if any(one.needed for one in ended) else None


def _unanswered(world: World) -> World:
    """A request to abort what this run has open got no answer: it may arrive later, or never."""
    machine = _tell(world.machine, on.AbortUnanswered(sink=SINK))
    return world._replace(machine=machine, flights=world.flights | {world.machine.generation(SINK)})


def _end(label: str, world: World, *, took_s: float, failed: bool, broken: Broken | None = None) -> Move:
    world = _later(world, took_s)
    machine = _tell(world.machine, on.SweepEnded(began_s=-took_s, at_s=0.0, failed=failed))
    pause_s = 0.0
    if failed:
        pause_s = machine.next_s or 0.0
        if machine.next_s is not None and pause_s <= world.pause_s < on.LONGEST_PAUSE_S:
            broken = broken or Broken.HURRIED
    return Move(label, world._replace(machine=machine, pause_s=pause_s), broken)


def _later(world: World, passed_s: float) -> World:
    """The world some seconds later, with all times relative to then. Times long ago are capped."""
    if not passed_s:
        return world
    machine = world.machine
    machine = replace(
        machine,
        next_s=None if machine.next_s is None else max(0.0, machine.next_s - passed_s),
        losers_end_s=None if machine.losers_end_s is None else max(machine.losers_end_s - passed_s, -SLOW_S),
        swept_s=max(machine.swept_s - passed_s, -machine.every_s),
    )
    return world._replace(machine=machine, losers_s=max(0.0, world.losers_s - passed_s))
