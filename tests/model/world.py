"""The world around the coordinator, and every move that may come next.

The coordinator, the log's view, the reading of the log, the codec, the transactional ids and the lanes are the
product's own code. Only what surrounds it is modeled here: Spark, worker processes, the log's keys, the broker.

A world is a flat tuple of numbers (each part is interned), in the order of the constants below. A move is one access to
shared state. What a party does between two accesses is invisible to others, so it belongs to the preceding move.

What may happen without limit: a run starts at any moment, even while others are running; a driver, or a single task,
pauses for any length of time, even forever. Pausing forever is a crash: a world is judged as if every driver had
crashed just then (`Model.stranded`), so crashes need no separate moves and do not count as faults.

What may happen as often as the configuration has faults: see `Fault`.

Steps that others cannot see are done immediately: the check of the servers, the questions before a decision if there is
no objection, and the messages to sinks and position reporters. The model checks that each of them is already allowed.

What is left out:

- Reading the log is one move. That a reader may be overtaken by clean-up is handled inside `DecisionLog.read`.
- A task attempt writes to a sink in two parts at most, and prepares with its last one. The first initialization of a
  fresh id is part of the first write, since nobody can distinguish them.
- A commit that is in flight for longer than a broker retains rows.
- Slots without rows, sinks without transactions, and brokers that forget ids. They are covered by the coordinator's
  unit tests.
- Refusals for offsets and query ids: all runs share one checkpoint, whose offset log is sound.

The ids are those of `LanePool`: they belong to one worker process of one run and have no generation.
`mutants.ReusesAtOnce` shows why a lane may be reused only two batches later, and `mutants.LendsBurnt` why it must not
be reused if its initialization got no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from model import broker as brokers
from model import copies
from model import log as logs
from model.broker import Broker, Rows
from model.log import Keys
from sparkonce.protocol import coordinator
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.effects import StopReason
from sparkonce.protocol.handles import Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import LanePool, Token, TransactionalId
from sparkonce.protocol.state import BadTransition, Phase, State
from sparkonce.protocol.view import Claim, LogView, LogViolation

QUERY = "5f6a2c1e-0000-4000-8000-000000000000"
SHORT_QUERY = "5f6a2c1e0000"

LOG, BROKER, SPARK, FLIGHTS, FAULTS, WORKERS, TASKS, DRIVERS = range(8)
World = tuple[int, ...]
Label = tuple[object, ...]


class Fault(str, Enum):
    """The faults, of which a world has a limited number.

    A request that is applied and whose reply is lost is the same as a late one that lands immediately.
    """

    PUT = "a put's reply is lost; it lands later, or never"
    REFUSED = "a put is refused by the disk"
    COMMIT = "a commit's reply is lost; it lands later, or never"
    ABORT = "an abort's reply is lost; it lands later, or never"
    INIT = "an initialisation's reply is lost; it lands later, or never"
    COPY = "Spark starts a second copy of a slot"
    TIMEOUT = "the broker aborts an open transaction"
    DAMAGE = "the broker deletes rows of an open transaction"
    OBJECTION = "a sink objects to a decision"
    AGAIN = "a batch is written again before it is decided"


class Violation(str, Enum):
    TWICE = "a row is visible twice"
    MISSING = "a batch is done and a row is not visible"
    TORN = "a part of a transaction is visible without the rest"
    MIXED = "rows of different executions of a batch are visible"
    UNDECIDED = "rows are visible that no decision names"
    UNDONE = "a transaction that a decision names was aborted by request"
    OVERRULED = "a decision names a transaction to which a sink had objected"
    EARLY = "a batch is called committed, and a row is not visible"
    DECIDED_TWICE = "a batch was decided by two commits"
    SHARED_ID = "an id was initialised by two runs or two processes"
    SHARED_EPOCH = "one epoch of an id carried two transactions"
    ILLEGAL_STOP = "a run stopped for a reason that did not exist"
    STRANDED = "a fresh run, left in peace, could not finish"
    TAKEN_FOR_OLD = "a fresh run with the newest log is refused as if it had an old copy"
    TAKEN_FOR_NEW = "a fresh run with an old copy of the log is not told from one with the newest"
    BAD_TRANSITION = "an event came that the coordinator does not expect"


@dataclass(frozen=True, kw_only=True)
class Config:
    """The size of a world.

    Attributes:
        slots: The number of tasks per batch.
        batches: The number of batches.
        runs: How many runs may start, in addition to the one that shows that a world is not stranded.
        faults: How many of `kinds` may happen.
        sinks: The sinks' names, which are also the prefixes of the ids.
        kinds: The possible faults.
        parts: The writes of an attempt to a sink, 1 or 2, that is, whether something may happen in between.
        keep_ready: True if workers initialize a lane for the next task while one is running.
        cleans_up: True if the log is ever cleaned up, so that the floor must be read in a separate move.
        deterministic: True if a second execution of a batch returns the same rows.
        doubt: What a driver learns about a commit without a reply.
    """

    slots: int = 1
    batches: int = 1
    runs: int = 2
    faults: int = 0
    sinks: tuple[str, ...] = ("orders",)
    kinds: frozenset[Fault] = frozenset(Fault)
    parts: int = 2
    keep_ready: bool = False
    cleans_up: bool = False
    deterministic: bool = True
    doubt: Outcome = Outcome.RETRY


class Task(NamedTuple):
    """A task attempt for a slot, in a worker process.

    Attributes:
        execution: Which of its run's executions it belongs to.
        targets: The sinks that it writes to.
        held: The lane, id and epoch of each sink begun so far.
        done: The number of completed writes: first parts, then second parts.
    """

    run: int
    token: Token
    execution: int
    batch: int
    slot: int
    copy: int
    worker: int
    version: int
    sinks: tuple[str, ...]
    targets: tuple[str, ...]
    held: tuple[tuple[int, str, int], ...] = ()
    done: int = 0


class Lanes(NamedTuple):
    """A worker's ids for one run and sink: the pool, those that are ready, those still to be initialized."""

    pool: LanePool = LanePool()
    ready: tuple[tuple[int, str, int], ...] = ()
    starting: tuple[tuple[int, str], ...] = ()


class Driver(NamedTuple):
    """A run: its batch, the coordinator's state and effect, and the progress of the effect."""

    asked: int
    state: int
    effect: int
    sub: Any = None
    executions: int = 0


class Stopped(NamedTuple):
    """A run that has ended."""

    reason: str


class Move(NamedTuple):
    label: Label
    world: World
    violation: Violation | None = None


class Table:
    """Interns values."""

    def __init__(self, *values: Hashable) -> None:
        self._numbers: dict[Any, int] = {}
        self.values: list[Any] = []
        for value in values:
            self.number(value)

    def number(self, value: Any) -> int:
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            self.values.append(value)
        return found


class Model:
    """Generates the moves of every world of one configuration.

    Args:
        config: The size of the worlds.
        wanted: The violations that count. Defaults to all; limited to show a mutant's final consequence.
    """

    def __init__(self, config: Config, wanted: frozenset[Violation] = frozenset(Violation)) -> None:
        self.config = config
        self.wanted = wanted
        self.logs, self.brokers, self.states = Table(Keys()), Table(Broker()), Table()
        self.effects, self.drivers, self.tasks, self.workers = Table(), Table(None), Table(()), Table(())
        self.flights, self.records, self.handles = Table(()), Table(), Table()
        self._stopped = self.drivers.number(Stopped("crashed"))
        self._steps: dict[Any, tuple[int, int]] = {}
        self._memo: dict[Any, Any] = {}
        self._safe: set[Any] = set()

    def first(self) -> World:
        """The initial world. The last driver is reserved for `stranded`."""
        return (0, 0, -1, 0, self.config.faults, 0, 0, *([0] * (self.config.runs + 1)))

    def transitions(self) -> set[tuple[Phase, type]]:
        """The transitions of the coordinator that the search covered."""
        return {(self.states.values[state].phase, type(event)) for state, event in self._steps}

    # --- what mutants change ------------------------------------------------------------------------------------------

    def name(self, task: Task, sink: str, lane: int) -> str:
        """The transactional id of a worker's lane. Workers outlive runs, so only the token distinguishes two runs."""
        return str(
            TransactionalId(prefix=sink, query=SHORT_QUERY, token=task.token, worker=f"{task.worker:012x}", lane=lane)
        )

    def owns(self, name: str, sinks: tuple[str, ...], tokens: frozenset[Token]) -> bool:
        """Returns True if a sweep of these runs covers the id."""
        found = TransactionalId.parse(name)
        return found is not None and any(found.belongs_to(sink, SHORT_QUERY, tokens) for sink in sinks)

    def floor_after_put(self, keys: Keys) -> Any:
        return keys.top

    def state_of(self, world: World, run: int) -> State:
        return State(claim=self.claim(run), transactional=self.config.sinks, reports=True)

    def burn(self, pool: LanePool, lane: int, batch: int) -> LanePool:
        """A lane whose initialization got no answer may be initialized by that very request at any later time."""
        return pool

    def give_back(self, mine: Lanes, held: tuple[int, str, int], batch: int) -> Lanes:
        return mine._replace(pool=mine.pool.give_back(held[0], batch))

    abort_bumps = True
    sees_damage = True
    floor_lowers = False

    @staticmethod
    def claim(run: int) -> Claim:
        return Claim(nonce=f"{run:08x}", run=f"run-{run}", query=QUERY)

    # --- moves --------------------------------------------------------------------------------------------------------

    def moves(self, world: World) -> list[Move]:
        """Every possible next move."""
        found: list[Move] = []
        for run in range(self.config.runs):
            driver = world[DRIVERS + run]
            if driver == 0:
                found.extend(self._start(world, run))
                break
            if driver != self._stopped:
                found.extend(self._drive(world, run))
        found.extend(self._work(world))
        found.extend(self._land(world))
        if world[FAULTS] and Fault.TIMEOUT in self.config.kinds:
            found.extend(self._time_out(world))
        if world[FAULTS] and Fault.DAMAGE in self.config.kinds:
            found.extend(self._damage(world))
        return found

    def _with(self, world: World, **parts: int) -> World:
        after = list(world)
        for part, value in parts.items():
            after[_PARTS[part]] = value
        return tuple(after)

    def _start(self, world: World, run: int) -> Iterator[Move]:
        """A driver starts and reads Spark's progress. It reads everything else later, when it needs it."""
        asked = world[SPARK] + 1
        if asked >= self.config.batches:
            return
        driver = Driver(asked, self.states.number(self.state_of(world, run)), -1)
        yield self._tell(world, run, driver, self.ask(asked), (f"run {run}", "starts"))

    # --- the coordinator ----------------------------------------------------------------------------------------------

    def _step(self, state: int, event: on.Event) -> tuple[int, int]:
        found = self._steps.get((state, event))
        if found is None:
            after, effect = coordinator.step(self.states.values[state], event)
            found = self._steps[state, event] = (self.states.number(after), self.effects.number(effect))
        return found

    @staticmethod
    def ask(batch: int) -> on.BatchAsked:
        """Spark requests a batch, with offsets from its own log."""
        return on.BatchAsked(
            batch=batch, offsets=(f"end {batch}",), previous_offsets=(f"end {batch - 1}",) if batch else None
        )

    def _tell(self, world: World, run: int, driver: Driver, event: on.Event, label: Label, **parts: int) -> Move:
        """Passes an event to the coordinator, and immediately carries out the steps that others cannot see."""
        world = self._with(world, **parts)
        while True:
            try:
                state, number = self._step(driver.state, event)
            except BadTransition:
                return Move(label, _put(world, DRIVERS + run, self._stopped), self.judge(Violation.BAD_TRANSITION))
            effect = self.effects.values[number]
            driver = driver._replace(state=state, effect=number, sub=None)
            if (done := _DONE_AT_ONCE.get(type(effect))) is not None:
                if (wrong := self._said_too_early(world, driver, effect)) is not None:
                    return Move(label, _put(world, DRIVERS + run, self._stopped), wrong)
                event = done
                continue
            if isinstance(effect, do.Validate) and not self._may_object(world, run):
                event = on.Validated()
                continue
            if isinstance(effect, do.Stop):
                wrong = self.judge(self._illegal(world, run, driver, effect.reason))
                number = self._stopped if run < self.config.runs else self.drivers.number(Stopped(effect.reason.value))
                return Move((*label, effect.reason.name), _put(world, DRIVERS + run, number), wrong)
            if isinstance(effect, do.Write):
                world, driver = self._launch(world, run, driver, effect)
                if -1 not in driver.sub:
                    event = self._prepared(driver.sub)
                    continue
            return Move(label, _put(world, DRIVERS + run, self.drivers.number(driver)))

    def _illegal(self, world: World, run: int, driver: Driver, reason: StopReason) -> Violation | None:
        state: State = self.states.values[driver.state]
        trouble = world[FAULTS] < self.config.faults
        if reason in (StopReason.SUPERSEDED, StopReason.STALE):
            try:
                view = self._read(world[LOG], LogView())
            except LogViolation:
                return Violation.ILLEGAL_STOP
            newest, decision = view.newest_run, view.newest_decision
            legal = (
                newest is not None and newest.token != state.token
                if reason is StopReason.SUPERSEDED
                else decision is not None and decision.batch > driver.asked
            )
        elif reason is StopReason.PREPARE_FAILED:
            legal = trouble or any(world[DRIVERS + other] for other in range(self.config.runs) if other != run)
        elif reason is StopReason.LOST:
            legal = trouble and not self.config.deterministic
        else:
            legal = trouble and reason in (StopReason.UNKNOWN, StopReason.UNWRITABLE)
        return None if legal else Violation.ILLEGAL_STOP

    def _said_too_early(self, world: World, driver: Driver, effect: do.Effect) -> Violation | None:
        """Finds a check of the servers, a conclusion or a report that comes before everything is committed."""
        if isinstance(effect, do.RunIntoNothing):
            return None
        batches = range(driver.asked) if isinstance(effect, do.CheckServers) else [driver.asked]
        early = any(self._missing(world[BROKER], batch) is not None for batch in batches)
        return self.judge(Violation.EARLY) if early else None

    def _may_object(self, world: World, run: int) -> bool:
        return self._faulty(world, run, Fault.OBJECTION) or self._faulty(world, run, Fault.AGAIN)

    # --- what drivers do ----------------------------------------------------------------------------------------------

    def _drive(self, world: World, run: int) -> list[Move]:
        driver: Driver = self.drivers.values[world[DRIVERS + run]]
        effect = self.effects.values[driver.effect]
        return list(_PERFORM[type(effect)](self, world, run, driver, effect))

    def _faulty(self, world: World, run: int, kind: Fault) -> bool:
        return world[FAULTS] > 0 and kind in self.config.kinds and run < self.config.runs

    def _read(self, log: int, view: LogView) -> LogView:
        return self._once(("read", log, view), lambda: logs.read(self.logs.values[log], view))

    def _once(self, key: Any, compute: Callable[[], Any]) -> Any:
        try:
            return self._memo[key]
        except KeyError:
            found = self._memo[key] = compute()
            return found

    def _read_log(self, world: World, run: int, driver: Driver, effect: do.ReadLog) -> Iterator[Move]:
        def compute() -> Any:
            try:
                return on.LogRead(view=logs.read(self.logs.values[world[LOG]], effect.view))
            except LogViolation:
                return None

        label, event = (f"run {run}", "reads the log"), self._once(("log read", world[LOG], driver.effect), compute)
        if event is not None:
            yield self._tell(world, run, driver, event, label)
        else:
            stopped = self._stopped if run < self.config.runs else self.drivers.number(Stopped("the log is broken"))
            yield Move(label, _put(world, DRIVERS + run, stopped), self.judge(Violation.ILLEGAL_STOP))

    def _put(self, world: World, run: int, driver: Driver, effect: do.Put) -> Iterator[Move]:
        who, position = f"run {run}", effect.position
        if driver.sub is not None:
            yield self._put_answered(world, run, driver, position, driver.sub, (who, "reads the floor"))
            return
        record = self.records.number(effect.record)
        log, standing, wrong = self._put_record(world[LOG], world[BROKER], position, record)
        label = (who, "puts", type(effect.record).__name__, position)
        if wrong is not None:
            yield Move(label, _put(world, LOG, log), wrong)
        elif self.config.cleans_up:
            waiting = self.drivers.number(driver._replace(sub=standing))
            yield Move(label, _put(_put(world, LOG, log), DRIVERS + run, waiting))
        else:
            yield self._put_answered(_put(world, LOG, log), run, driver, position, standing, label)
        if self._faulty(world, run, Fault.PUT):
            flights = self._fly(world, ("put", position, record))
            unknown = on.PutUnknown(position=position)
            yield self._tell(world, run, driver, unknown, (*label, "late"), flights=flights, **_costs(world))
        if self._faulty(world, run, Fault.REFUSED):
            refused = on.PutRefused(position=position)
            yield self._tell(world, run, driver, refused, (*label, "refused"), **_costs(world))

    def _put_answered(self, world: World, run: int, driver: Driver, position: int, standing: int, label: Label) -> Move:
        floor = self.floor_after_put(self.logs.values[world[LOG]])
        if standing < 0:
            return self._tell(world, run, driver, on.PutLanded(position=position, floor=floor), label)
        taken = on.PutTaken(position=position, standing=self.records.values[standing], floor=floor)
        return self._tell(world, run, driver, taken, label)

    def _put_record(self, log: int, broker: int, position: int, record: int) -> tuple[int, int, Violation | None]:
        """The log after a put, the record that was there (-1: none), and what that violated."""

        def compute() -> tuple[int, int]:
            keys, standing = logs.put(self.logs.values[log], position, self.records.values[record])
            return self.logs.number(keys), -1 if standing is None else self.records.number(standing)

        after, standing = self._once(("put", log, position, record), compute)
        if standing >= 0 or after == log:
            return after, standing, None
        keys: Keys = self.logs.values[after]
        wrong = None
        if keys.twice:
            wrong = Violation.DECIDED_TWICE
        elif not keys.named.isdisjoint(keys.objected):
            wrong = Violation.OVERRULED
        elif not keys.named.isdisjoint(self.brokers.values[broker].undone):
            wrong = Violation.UNDONE
        return after, standing, self.judge(wrong)

    def _validate(self, world: World, run: int, driver: Driver, effect: do.Validate) -> Iterator[Move]:
        """A sink objects or does not, or the batch is written again, immediately or after it is undone."""
        who = f"run {run}"
        yield self._tell(world, run, driver, on.Validated(), (who, "meets no objection"))
        if self._faulty(world, run, Fault.OBJECTION):
            log = self.logs.number(logs.object_to(self.logs.values[world[LOG]], effect.handles))
            objected = on.Objected(reason="the place is another one")
            yield self._tell(world, run, driver, objected, (who, "meets an objection"), log=log, **_costs(world))
        if self._faulty(world, run, Fault.AGAIN):
            for undo in (True, False):
                label = (who, "writes again,", "undone" if undo else "not undone")
                yield self._tell(world, run, driver, on.Unready(undo=undo), label, **_costs(world))

    def judge(self, wrong: Violation | None) -> Violation | None:
        return wrong if wrong in self.wanted else None

    def _sweep(self, world: World, run: int, driver: Driver, effect: do.Sweep) -> Iterator[Move]:
        who = f"run {run}"
        if driver.sub is None:
            tokens = frozenset(swept.token for swept in effect.runs)
            lingering = tuple(
                found
                for found in self.brokers.values[world[BROKER]].lingering()
                if self._owns(found[0], self.config.sinks, tokens)
            )
            label = (who, "lists its own losers" if effect.best_effort else "lists what lingers", len(lingering))
            if not lingering or effect.best_effort:
                yield self._tell(world, run, driver, on.Swept(), (*label, "leaves it") if lingering else label)
            if lingering:
                yield Move(label, _put(world, DRIVERS + run, self.drivers.number(driver._replace(sub=lingering))))
            return
        (name, epoch), rest = driver.sub[0], driver.sub[1:]
        label = (who, "aborts", name, epoch)
        broker, wrong = self._abort(world, name, epoch)
        if rest:
            after = self._with(world, broker=broker)
            driver_after = self.drivers.number(driver._replace(sub=rest))
            yield Move(label, _put(after, DRIVERS + run, driver_after), wrong)
        else:
            move = self._tell(world, run, driver, on.Swept(), label, broker=broker)
            yield move if wrong is None else move._replace(violation=wrong)
        if self._faulty(world, run, Fault.ABORT):
            flights = self._fly(world, ("abort", name, epoch))
            yield Move((*label, "late"), self._with(world, flights=flights, **_costs(world)))

    def _owns(self, name: str, sinks: tuple[str, ...], tokens: frozenset[Token]) -> bool:
        return self._once(("owns", name, sinks, tokens), lambda: self.owns(name, sinks, tokens))

    def _abort(self, world: World, name: str, epoch: int) -> tuple[int, Violation | None]:
        def compute() -> tuple[int, str]:
            after, answer = brokers.abort(self.brokers.values[world[BROKER]], name, epoch, self.abort_bumps)
            return self.brokers.number(after), answer

        after, answer = self._once(("abort", world[BROKER], name, epoch), compute)
        named = answer == "aborted" and (name, epoch) in self.logs.values[world[LOG]].named
        return after, self.judge(Violation.UNDONE) if named else None

    def _undo(self, world: World, run: int, driver: Driver, effect: do.Abort) -> Iterator[Move]:
        index = driver.sub or 0
        handle = effect.handles[index]
        name, epoch = str(handle["id"]), int(handle["epoch"])
        label = (f"run {run}", "undoes", name, epoch)
        broker, wrong = self._abort(world, name, epoch)
        choices: list[tuple[Label, dict[str, int], Violation | None]] = [(label, {"broker": broker}, wrong)]
        if self._faulty(world, run, Fault.ABORT):
            flights = self._fly(world, ("abort", name, epoch))
            choices.append(((*label, "late"), {"flights": flights, **_costs(world)}, None))
        for what, parts, broken in choices:
            if index + 1 < len(effect.handles):
                waiting = self.drivers.number(driver._replace(sub=index + 1))
                yield Move(what, _put(self._with(world, **parts), DRIVERS + run, waiting), broken)
            else:
                move = self._tell(world, run, driver, on.Aborted(), what, **parts)
                yield move if broken is None else move._replace(violation=broken)

    def _finish(self, world: World, run: int, driver: Driver, effect: do.Finish) -> Iterator[Move]:
        """Commits one after the other, in every order, which covers everything that parallel commits can do."""
        known: tuple[Outcome | None, ...] = driver.sub or (None,) * len(effect.handles)
        open_ones = [index for index, outcome in enumerate(known) if outcome is None]
        for index in open_ones:
            handle = effect.handles[index]
            name, epoch = str(handle["id"]), int(handle["epoch"])
            void = handle.key in effect.void
            label = (f"run {run}", "aborts what is void" if void else "commits", name, epoch)
            if void:
                broker, outcome, wrong = self._abort_void(world, name, epoch)
            elif self.sees_damage and brokers.is_damaged(self.brokers.values[world[BROKER]], name, epoch):
                broker, outcome, wrong = world[BROKER], Outcome.DAMAGED, None
            else:
                broker, outcome, wrong = self._commit(world, name, epoch)
            yield from self._answered(
                world, run, driver, _put(known, index, outcome), (*label, outcome.name), wrong, broker=broker
            )
            kind = Fault.ABORT if void else Fault.COMMIT
            if outcome is not Outcome.DAMAGED and self._faulty(world, run, kind):
                flights = self._fly(world, ("abort" if void else "commit", name, epoch))
                yield from self._answered(
                    world,
                    run,
                    driver,
                    _put(known, index, self.config.doubt),
                    (*label, "late"),
                    None,
                    flights=flights,
                    **_costs(world),
                )

    def _abort_void(self, world: World, name: str, epoch: int) -> tuple[int, Outcome, Violation | None]:
        entry = self.brokers.values[world[BROKER]].entry(name)
        if entry is not None and (entry.epoch, entry.status) == (epoch, brokers.COMMITTED):
            return world[BROKER], Outcome.ALREADY_COMMITTED, None
        broker, wrong = self._abort(world, name, epoch)
        return broker, Outcome.ABORTED, wrong

    def _answered(
        self,
        world: World,
        run: int,
        driver: Driver,
        known: tuple[Outcome | None, ...],
        label: Label,
        wrong: Violation | None,
        **parts: int,
    ) -> Iterator[Move]:
        if wrong is not None or None in known:
            waiting = self.drivers.number(driver._replace(sub=known))
            yield Move(label, _put(self._with(world, **parts), DRIVERS + run, waiting), wrong)
            return
        yield self._tell(world, run, driver, on.HandlesFinished(outcomes=known), label, **parts)
        if self.config.doubt in known:
            finished = on.HandlesFinished(outcomes=known, deadline_passed="too late")
            yield self._tell(world, run, driver, finished, (*label, "deadline"), **parts)

    def _commit(self, world: World, name: str, epoch: int) -> tuple[int, Outcome, Violation | None]:
        def compute() -> tuple[int, Outcome]:
            after, outcome = brokers.commit(self.brokers.values[world[BROKER]], name, epoch)
            return self.brokers.number(after), outcome

        after, outcome = self._once(("commit", world[BROKER], name, epoch), compute)
        if after == world[BROKER]:
            return after, outcome, None
        wrong = self._once(("seen", world[BROKER], after), lambda: (self._wrong_rows(world[BROKER], after),))[0]
        if wrong is None and (name, epoch) not in self.logs.values[world[LOG]].named:
            wrong = self.judge(Violation.UNDECIDED)
        return after, outcome, wrong

    def _wrong_rows(self, before: int, after: int) -> Violation | None:
        old, new = self.brokers.values[before].visible, self.brokers.values[after].visible
        (rows,) = [row for row in new if new.count(row) > old.count(row)][:1]
        wrong = None
        if len({(row.batch, row.slot, row.sink) for row in new}) < len(new):
            wrong = Violation.TWICE
        elif rows.parts < 2:
            wrong = Violation.TORN
        elif any(row.version != rows.version for row in new if row.batch == rows.batch):
            wrong = Violation.MIXED
        return self.judge(wrong)

    def _raise_floor(self, world: World, run: int, driver: Driver, effect: do.RaiseFloor) -> Iterator[Move]:
        log = self._once(
            ("floor", world[LOG], effect.floor),
            lambda: self.logs.number(logs.raise_floor(self.logs.values[world[LOG]], effect.floor, self.floor_lowers)),
        )
        raised = on.FloorRaised(floor=effect.floor)
        yield self._tell(world, run, driver, raised, (f"run {run}", "raises the floor"), log=log)

    def _delete(self, world: World, run: int, driver: Driver, effect: do.DeleteBelow) -> Iterator[Move]:
        log = self._once(
            ("delete", world[LOG], effect.position),
            lambda: self.logs.number(logs.delete_below(self.logs.values[world[LOG]], effect.position)),
        )
        yield self._tell(world, run, driver, on.Deleted(), (f"run {run}", "deletes below", effect.position), log=log)

    def _done(self, world: World, run: int, driver: Driver, effect: do.Done) -> Iterator[Move]:
        """Spark writes commits/N, and asks for the next batch if there is one."""
        label = (f"run {run}", "Spark commits", effect.batch)
        wrong = self.judge(self._missing(world[BROKER], effect.batch))
        world = _put(world, SPARK, max(world[SPARK], effect.batch))
        if wrong is not None or effect.batch + 1 >= self.config.batches:
            yield Move(label, _put(world, DRIVERS + run, self._stopped), wrong)
        else:
            asked = driver.asked + 1
            yield self._tell(world, run, driver._replace(asked=asked), self.ask(asked), label)

    def _missing(self, broker: int, batch: int) -> Violation | None:
        def compute() -> tuple[Violation | None]:
            seen = [row for row in self.brokers.values[broker].visible if row.batch == batch]
            expected = self.config.slots * len(self.config.sinks)
            return (Violation.MISSING if len(seen) < expected else None,)

        return self._once(("missing", broker, batch), compute)[0]

    # --- Spark's tasks ------------------------------------------------------------------------------------------------

    def _launch(self, world: World, run: int, driver: Driver, effect: do.Write) -> tuple[World, Driver]:
        """The first attempt of every slot, each in the first free worker."""
        tasks: tuple[Task, ...] = self.tasks.values[world[TASKS]]
        state: State = self.states.values[driver.state]
        if state.token is None:
            raise BadTransition("a write before the claim")
        winners, added = [], []
        for slot in range(self.config.slots):
            task = self._task(run, state.token, driver.executions, effect, slot, 0, (*tasks, *added))
            if task.targets:
                added.append(task)
            winners.append(-1 if task.targets else self._handles(task))
        number = self.tasks.number(tuple(sorted((*tasks, *added))))
        return (_put(world, TASKS, number), driver._replace(sub=tuple(winners), executions=driver.executions + 1))

    def _collect(self, world: World, run: int, driver: Driver, effect: do.Write) -> Iterator[Move]:
        """The driver waits for its slots. A slot whose attempts all failed fails the job, or is retried."""
        tasks: tuple[Task, ...] = self.tasks.values[world[TASKS]]
        execution = driver.executions - 1
        for slot, winner in enumerate(driver.sub):
            if winner >= 0:
                continue
            copies = [t for t in tasks if (t.run, t.execution, t.slot) == (run, execution, slot)]
            if not copies:
                failed = on.PrepareFailed(reason="a copy was fenced")
                yield self._tell(world, run, driver, failed, (f"run {run}", "slot fails", slot))
                if self._faulty(world, run, Fault.AGAIN):
                    label = (f"run {run}", "slot fails, all is written again", slot)
                    yield self._tell(world, run, driver, on.Unready(undo=False), label, **_costs(world))
            if len(copies) < 2 and self._faulty(world, run, Fault.COPY):
                yield self._copy(world, run, driver, effect, slot, copies)

    def _copy(self, world: World, run: int, driver: Driver, effect: do.Write, slot: int, copies: list[Task]) -> Move:
        tasks: tuple[Task, ...] = self.tasks.values[world[TASKS]]
        token, copy = self.states.values[driver.state].token, 1 + max((task.copy for task in copies), default=0)
        task = self._task(run, token, driver.executions - 1, effect, slot, copy, tasks)
        number = self.tasks.number(tuple(sorted((*tasks, task))))
        return Move((f"run {run}", "slot gets another copy", slot), self._with(world, tasks=number, **_costs(world)))

    def _task(
        self, run: int, token: Token, execution: int, effect: do.Write, slot: int, copy: int, tasks: tuple[Task, ...]
    ) -> Task:
        """An attempt for a slot, in the first free worker."""
        return Task(
            run=run,
            token=token,
            execution=execution,
            batch=effect.batch,
            slot=slot,
            copy=copy,
            worker=_free_worker(tasks, token),
            version=0 if self.config.deterministic else run * 8 + execution,
            sinks=effect.sinks,
            targets=tuple(sink for sink in effect.sinks if effect.only is None or (sink, slot) in effect.only),
        )

    def _work(self, world: World) -> Iterator[Move]:
        for task in self.tasks.values[world[TASKS]]:
            yield from self._work_on(world, task)

    def _work_on(self, world: World, task: Task) -> Iterator[Move]:
        if task.done < len(task.targets) and len(task.held) == task.done:
            yield from self._begin(world, task)
        else:
            yield self._write(world, task)

    def _begin(self, world: World, task: Task) -> Iterator[Move]:
        """Takes a ready lane, or initializes one."""
        sink = task.targets[task.done]
        mine = self._lanes(world, task, sink)
        if mine.ready:
            held, mine = mine.ready[0], mine._replace(ready=mine.ready[1:])
            world, wrong = self._keep_ready(world, task, sink, mine)
            move = self._write(
                self._retask(world, task, held=(*task.held, held)), task._replace(held=(*task.held, held))
            )
            yield move if wrong is None else move._replace(violation=wrong)
            return
        if mine.starting:
            (lane, name), mine = mine.starting[0], mine._replace(starting=mine.starting[1:])
        else:
            pool, lane = mine.pool.lend(task.batch)
            name, mine = self.name(task, sink, lane), mine._replace(pool=pool)
        known = self.brokers.values[world[BROKER]].entry(name) is not None
        if self._faulty(world, task.run, Fault.INIT):
            burnt = mine._replace(pool=self.burn(mine.pool, lane, task.batch))
            yield Move(
                (*_who(task), "initialises", name, "late"),
                self._with(
                    self._set_lanes(world, task, sink, burnt),
                    flights=self._fly(world, ("init", name, (task.token.position, task.worker))),
                    **_costs(world),
                ),
            )
        world, epoch, wrong = self._initialise(world, task, name)
        world, also_wrong = self._keep_ready(world, task, sink, mine)
        held = (lane, name, epoch)
        after = self._retask(world, task, held=(*task.held, held))
        label = (*_who(task), "initialises", name, epoch)
        wrong = wrong or also_wrong
        if known or wrong is not None:
            yield Move(label, after, wrong)
            return
        # No process knows a new id yet, so initializing it cannot be distinguished from the first write.
        move = self._write(after, task._replace(held=(*task.held, held)))
        yield move._replace(label=(*label, *move.label[len(_who(task)) :]))

    def _keep_ready(self, world: World, task: Task, sink: str, mine: Lanes) -> tuple[World, Violation | None]:
        wrong = None
        if self.config.keep_ready and not mine.ready and not mine.starting and task.run < self.config.runs:
            pool, lane = mine.pool.lend(task.batch)
            name = self.name(task, sink, lane)
            if self.brokers.values[world[BROKER]].entry(name) is None:
                world, epoch, wrong = self._initialise(world, task, name)
                mine = mine._replace(pool=pool, ready=((lane, name, epoch),))
            else:
                mine = mine._replace(pool=pool, starting=((lane, name),))
        return self._set_lanes(world, task, sink, mine), wrong

    def _initialise(self, world: World, task: Task, name: str) -> tuple[World, int, Violation | None]:
        return self._initialise_as(world, name, (task.token.position, task.worker))

    def _initialise_as(self, world: World, name: str, owner: tuple[int, int]) -> tuple[World, int, Violation | None]:
        def compute() -> tuple[int, int, bool, tuple[str, int] | None]:
            before: Broker = self.brokers.values[world[BROKER]]
            entry = before.entry(name)
            undone = (name, entry.epoch) if entry is not None and entry.status == brokers.OPEN else None
            after, (epoch, shared) = brokers.initialise(before, name, owner)
            return self.brokers.number(after), epoch, shared, undone

        broker, epoch, shared, undone = self._once(("init", world[BROKER], name, owner), compute)
        wrong = None
        if undone is not None and undone in self.logs.values[world[LOG]].named:
            wrong = self.judge(Violation.UNDONE)
        elif shared:
            wrong = self.judge(Violation.SHARED_ID)
        return _put(world, BROKER, broker), epoch, wrong

    def _write(self, world: World, task: Task) -> Move:
        """Writes a part. The last one prepares: the attempt offers its handles to the driver and stops writing."""
        count = len(task.targets)
        index = task.done % count
        sink = task.targets[index]
        _, name, epoch = task.held[index]
        parts = 2 if self.config.parts == 1 else 1
        rows = Rows(task.batch, task.slot, sink, task.version, parts)

        def compute() -> tuple[int, str]:
            after, answer = brokers.write(self.brokers.values[world[BROKER]], name, epoch, rows)
            return self.brokers.number(after), answer

        broker, answer = self._once(("write", world[BROKER], name, epoch, rows), compute)
        label = (*_who(task), "writes", name, epoch, answer)
        world = _put(world, BROKER, broker)
        wrong = self.judge(Violation.SHARED_EPOCH) if answer == "reopened" else None
        if answer == "fenced":
            return Move(label, self._leave(world, task))
        task_after = task._replace(done=task.done + 1)
        if task_after.done < count * self.config.parts:
            return Move(label, self._retask(world, task, done=task_after.done), wrong)
        move = self._offer(self._leave(world, task), task, (*label, "prepared"))
        return move if wrong is None else move._replace(violation=wrong)

    def _prepared(self, winners: tuple[int, ...]) -> on.Prepared:
        return on.Prepared(handles=tuple(handle for number in winners for handle in self.handles.values[number]))

    def _offer(self, world: World, task: Task, label: Label) -> Move:
        """Spark accepts the first finished attempt of a slot."""
        number = world[DRIVERS + task.run]
        driver = self.drivers.values[number]
        waits = (
            number != self._stopped
            and isinstance(driver, Driver)
            and isinstance(self.effects.values[driver.effect], do.Write)
            and driver.executions - 1 == task.execution
            and driver.sub[task.slot] < 0
        )
        if not waits:
            return Move((*label, "too late"), world)
        winners = _put(driver.sub, task.slot, self._handles(task))
        if -1 in winners:
            return Move(label, _put(world, DRIVERS + task.run, self.drivers.number(driver._replace(sub=winners))))
        return self._tell(world, task.run, driver, self._prepared(winners), label)

    def _handles(self, task: Task) -> int:
        held = dict(zip(task.targets, task.held, strict=True)) if task.held else {}
        return self.handles.number(
            tuple(
                Handle(
                    sink=sink,
                    slot=task.slot,
                    rows=1,
                    fingerprint=task.version,
                    transaction=transaction_fields({"id": held[sink][1], "epoch": held[sink][2]})
                    if sink in held
                    else (),
                )
                for sink in task.sinks
            )
        )

    def _leave(self, world: World, task: Task) -> World:
        """The attempt ends, and its lanes carried transactions of its batch."""
        tasks = tuple(other for other in self.tasks.values[world[TASKS]] if not _same(other, task))
        world = _put(world, TASKS, self.tasks.number(tasks))
        for sink, held in zip(task.targets, task.held, strict=False):
            mine = self._lanes(world, task, sink)
            world = self._set_lanes(world, task, sink, self.give_back(mine, held, task.batch))
        return world

    def _retask(self, world: World, task: Task, **changes: Any) -> World:
        others = (other for other in self.tasks.values[world[TASKS]] if not _same(other, task))
        return _put(world, TASKS, self.tasks.number(tuple(sorted((*others, task._replace(**changes))))))

    def _lanes(self, world: World, task: Task, sink: str) -> Lanes:
        key = (task.token, task.worker, sink)
        for owner, lanes in self.workers.values[world[WORKERS]]:
            if owner == key:
                return lanes
        return Lanes()

    def _set_lanes(self, world: World, task: Task, sink: str, lanes: Lanes) -> World:
        key = (task.token, task.worker, sink)
        others = (pair for pair in self.workers.values[world[WORKERS]] if pair[0] != key)
        number = self.workers.number(tuple(sorted((*others, (key, lanes)), key=_by_owner)))
        return _put(world, WORKERS, number)

    # --- spontaneous events -------------------------------------------------------------------------------------------

    def _fly(self, world: World, request: tuple[Any, ...]) -> int:
        return self.flights.number(tuple(sorted((*self.flights.values[world[FLIGHTS]], request), key=repr)))

    def _land(self, world: World) -> Iterator[Move]:
        """Requests in flight arrive. Nobody waits for their answers."""
        flights = self.flights.values[world[FLIGHTS]]
        for index, request in enumerate(flights):
            rest = self.flights.number(flights[:index] + flights[index + 1 :])
            after, wrong = _put(world, FLIGHTS, rest), None
            kind, *what = request
            if kind == "put":
                log, _, wrong = self._put_record(world[LOG], world[BROKER], what[0], what[1])
                after = _put(after, LOG, log)
                what[1] = type(self.records.values[what[1]]).__name__
            elif kind == "commit":
                broker, _, wrong = self._commit(world, what[0], what[1])
                after = _put(after, BROKER, broker)
            elif kind == "abort":
                broker, wrong = self._abort(world, what[0], what[1])
                after = _put(after, BROKER, broker)
            else:
                after, _, wrong = self._initialise_as(after, what[0], what[1])
            yield Move(("late", kind, *what), after, wrong)

    def _time_out(self, world: World) -> Iterator[Move]:
        broker: Broker = self.brokers.values[world[BROKER]]
        for name, epoch in broker.lingering():
            after = self._once(
                ("timeout", world[BROKER], name), lambda name=name: self.brokers.number(brokers.time_out(broker, name))
            )
            yield Move(("timeout", name, epoch), self._with(world, broker=after, **_costs(world)))

    def _damage(self, world: World) -> Iterator[Move]:
        broker: Broker = self.brokers.values[world[BROKER]]
        under_way = {tuple(what) for kind, *what in self.flights.values[world[FLIGHTS]] if kind == "commit"}
        for name, epoch in broker.lingering():
            if brokers.is_damaged(broker, name, epoch) or (name, epoch) in under_way:
                continue
            after = self._once(
                ("damage", world[BROKER], name), lambda name=name: self.brokers.number(brokers.damage(broker, name))
            )
            yield Move(("rows are deleted of", name, epoch), self._with(world, broker=after, **_costs(world)))

    # --- a crash of everybody -----------------------------------------------------------------------------------------

    def stranded(self, world: World) -> list[Move]:
        """Returns the moves of a new run that fails if everybody else dies now; empty if it succeeds."""
        key = (world[LOG], world[BROKER], world[SPARK])
        if key in self._safe:
            return []
        wrong = self._once(("copies", world[LOG], world[BROKER]), lambda: self._look_around(world))
        if wrong is not None:
            return [Move(("a fresh run", "looks around"), world, wrong)]
        path = self._recover(world)
        if path and path[-1].violation is not None:
            return path
        self._safe.add(key)
        return []

    def _look_around(self, world: World) -> Violation | None:
        keys, broker = self.logs.values[world[LOG]], self.brokers.values[world[BROKER]]
        if Violation.TAKEN_FOR_OLD in self.wanted and copies.is_taken_for_old(keys, broker):
            return Violation.TAKEN_FOR_OLD
        if Violation.TAKEN_FOR_NEW in self.wanted and copies.is_taken_for_new(keys, broker):
            return Violation.TAKEN_FOR_NEW
        return None

    def _recover(self, world: World) -> list[Move]:
        run, trouble = self.config.runs, world[FAULTS] < self.config.faults
        world = (*world[:FLIGHTS], 0, world[FAULTS], 0, 0, *([self._stopped] * run), 0)
        path = list(self._start(world, run))
        while path and path[-1].violation is None:
            world = path[-1].world
            number = world[DRIVERS + run]
            if number == self._stopped:
                break
            if isinstance(stopped := self.drivers.values[number], Stopped):
                # Only rows that cannot be recomputed may end it.
                if self.config.deterministic or not trouble or stopped.reason != StopReason.LOST.value:
                    path[-1] = path[-1]._replace(violation=self.judge(Violation.STRANDED))
                return path
            ready = list(self._work(world)) or self._drive(world, run)
            path.append(ready[0])
        broker = (path[-1].world if path else world)[BROKER]
        missing = [batch for batch in range(self.config.batches) if self._missing(broker, batch) is not None]
        if missing and (not path or path[-1].violation is None):
            path.append(Move(("nobody", "finds batches", *missing), world, self.judge(Violation.MISSING)))
        return path


def _costs(world: World) -> dict[str, int]:
    return {"faults": world[FAULTS] - 1}


def _put(whole: Any, index: int, value: Any) -> Any:
    return (*whole[:index], value, *whole[index + 1 :])


def _who(task: Task) -> Label:
    return (f"run {task.run}", f"batch {task.batch} slot {task.slot} copy {task.copy}")


def _same(one: Task, other: Task) -> bool:
    return one[:6] == other[:6]


def _by_owner(pair: tuple[Any, Lanes]) -> Any:
    return pair[0]


def _free_worker(tasks: tuple[Task, ...], token: Token) -> int:
    busy = {task.worker for task in tasks if task.token == token}
    return next(worker for worker in range(len(busy) + 1) if worker not in busy)


_PARTS = {
    "log": LOG,
    "broker": BROKER,
    "spark": SPARK,
    "flights": FLIGHTS,
    "faults": FAULTS,
    "workers": WORKERS,
    "tasks": TASKS,
}
_DONE_AT_ONCE: dict[type, on.Event] = {
    do.CheckServers: on.ServersChecked(),
    do.RunIntoNothing: on.PlanRun(),
    do.Conclude: on.Concluded(),
    do.Report: on.Reported(),
}
_PERFORM: dict[type, Callable[..., Iterator[Move]]] = {
    do.ReadLog: Model._read_log,
    do.Put: Model._put,
    do.Sweep: Model._sweep,
    do.Write: Model._collect,
    do.Validate: Model._validate,
    do.Finish: Model._finish,
    do.Abort: Model._undo,
    do.RaiseFloor: Model._raise_floor,
    do.DeleteBelow: Model._delete,
    do.Done: Model._done,
}
