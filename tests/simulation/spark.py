"""Spark as the product sees it: which batch is requested, tasks and their attempts, worker processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulation.config import COMMIT_DEADLINE_S
from simulation.engine import BATCHES_APART_MS as BATCHES_APART_MS
from simulation.engine import UNDER_WAY
from simulation.oracle import Violation
from sparkonce.decision_log import DecisionLog
from sparkonce.driver.outage import Timing
from sparkonce.driver.run import RunDriver
from sparkonce.driver.start import ResumePoint, mend, read_log
from sparkonce.errors import CheckpointMismatchError, PrepareError, SparkonceError
from sparkonce.operate.resolve import resolve
from sparkonce.protocol import events as on
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim
from sparkonce.sink import Owner
from sparkonce.spark.formats.ends import Ends
from sparkonce.spark.formats.task import SlotWritten
from sparkonce.storage.files import CheckpointFiles, Landed
from sparkonce.storage.spark_checkpoint import SparkCheckpoint

if TYPE_CHECKING:
    from simulation.engine import Party, Simulation
    from simulation.model_log import ModelLog
    from simulation.systems import System

Run = tuple[Callable[..., Token | None], Callable[[], None]]
"""One function carries out a batch and returns the token of its run; the other ends the run."""

QUERY = "5f6a2c1e-0000-4000-8000-000000000000"
MOST_ATTEMPTS = 3
SOON_S = 0.05
"""When a run sweeps, if a thread does it. No deadline passes during the sweep."""
_LONG = 0.2
"""How often a batch is long, in worlds with long batches."""
_LONG_TIMES = (0.7, 1.1)
"""How long such a batch takes, in transaction lifetimes: so long that its run checks if they are still open."""


class Process:
    """A Python worker, which runs one task after another. Killing one of its threads kills all of them.

    Args:
        simulation: The schedule.
        number: The worker's unique number.
        idle: The workers without a task.

    Attributes:
        dead: True if it was killed.
        kept: What sinks store in it from task to task.
        task: The task attempt that it is running.
        threads: What runs in parallel, also between tasks.
        behind: The work of other threads that has not begun.
    """

    __slots__ = ("_idle", "_simulation", "behind", "dead", "kept", "number", "task", "threads")

    def __init__(self, simulation: Simulation, number: int, idle: list[Process]) -> None:
        self._simulation, self._idle = simulation, idle
        self.number = number
        self.dead = False
        self.kept: dict[Any, Any] = {}
        self.task: Party | None = None
        self.threads: list[Party] = []
        self.behind: list[Callable[[], None]] = []

    def in_thread(self, work: Callable[[], None]) -> None:
        """Runs this in parallel with its task: as a party or, if its task is waiting, before anybody else continues."""
        simulation = self._simulation
        if simulation.peace or not simulation.dice.chance(simulation.config.switches):
            self.behind.append(work)
            return

        def run() -> None:
            work()
            self.threads.remove(party)

        party = simulation.start(f"process {self.number}, thread", run, self.die)
        self.threads.append(party)

    def catch_up(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Does the work of its threads that are not parties."""
        while self.behind and not enough():
            self.behind.pop(0)()

    def leave(self) -> None:
        """Its task is over."""
        self.task = None
        self._idle.append(self)

    def die(self) -> None:
        """All of it ends once one of its parties was killed."""
        if self.dead:
            return
        self.dead = True
        if self in self._idle:
            self._idle.remove(self)
        for party in (self.task, *self.threads):
            if party is not None and not party.dead:
                self._simulation.kill(party)


class Cluster:
    """What drivers share: Spark's checkpoint, worker processes, the log, the systems.

    Args:
        simulation: The schedule.
        systems: The systems, by sink name.
        log: The decision log.
    """

    def __init__(self, simulation: Simulation, systems: Mapping[str, System], log: ModelLog) -> None:
        self.simulation = simulation
        self.systems = systems
        self.log = log
        self.sinks = {name: system.sink() for name, system in systems.items()}
        self.early = [name for name, system in systems.items() if system.opens_early]
        self.committed = -1
        self.runs = 0
        self.attempts = 0
        self.executions = 0
        self.processes = 0
        self.idle: list[Process] = []
        self.drivers: list[Party] = []
        self.operators = 0
        self.power_cuts = 0
        self.checkpoint = Checkpoint(self)
        log.decides_for(self.checkpoint)

    def start_run(self) -> None:
        """Starts a driver, regardless of what else is running."""
        number = self.runs
        self.runs += 1
        name, batches = f"run {number}", self.simulation.config.batches
        work = lambda: self._guarded(run_id(name), lambda: self.run(number, batches))  # noqa: E731
        self.drivers.append(self.simulation.start(name, work))

    def start_operator(self) -> None:
        """An operator resolves the query's open transactions, regardless of what else is running."""
        self.operators += 1
        name = f"operator {self.operators}"
        self.drivers.append(self.simulation.start(name, lambda: self._guarded(run_id(name), self._resolve)))

    def cut_power(self) -> None:
        """The machine of all drivers and tasks loses power, and with it what Spark has not made durable."""
        self.power_cuts += 1
        self.simulation.say("the power is cut")
        self.simulation.note("power cut")
        for process in list(self.idle):
            process.die()
        for party in list(self.simulation.parties):
            self.simulation.kill(party)
        self.checkpoint.lose_power()
        self.committed = SparkCheckpoint(self.checkpoint).finished()

    def _mend(self) -> None:
        """A start repairs the checkpoint, and the user deletes what it says may be deleted."""
        try:
            mend(SparkCheckpoint(self.checkpoint), read_log(self.log))
        except CheckpointMismatchError as error:
            advice, _, command = error.next_step.partition(": rm ")
            if not advice.startswith("Delete them"):
                raise
            self.simulation.say("deletes", command)
            self.checkpoint.delete(one.removeprefix(f"{self.checkpoint.location}/") for one in command.split())
            self.committed = SparkCheckpoint(self.checkpoint).finished()

    def _resolve(self) -> None:
        done = resolve(self.checkpoint, self.sinks, patience_s=COMMIT_DEADLINE_S)
        self.simulation.say("has resolved", done)
        if done.batch is not None and done.is_all:
            self.simulation.oracle.done(done.batch)

    def _guarded(self, run: str, work: Callable[[], None]) -> None:
        oracle = self.simulation.oracle
        start = oracle.start(run)
        try:
            work()
        except SparkonceError as error:
            oracle.stopped(start, error)

    def run(self, number: int, batches: int) -> None:
        """Runs a driver, from its start until all batches are done.

        Raises:
            SparkonceError: If it has to stop.
        """
        simulation = self.simulation
        if self.committed + 1 >= batches:
            return
        if simulation.config.power_cuts:
            self._mend()
        carry_out, end = (self._in_halves if simulation.config.halves else self._whole)(number)
        for batch in range(self.committed + 1, batches):
            simulation.say("batch", batch, "is asked for")
            simulation.newest_batch = max(simulation.newest_batch, batch)
            plan = self.checkpoint.plan(batch)
            offsets, before = map(SparkCheckpoint(self.checkpoint).input_offsets, (batch, batch - 1))
            asked = on.BatchAsked(batch=batch, offsets=offsets or (), previous_offsets=before)
            token = carry_out(asked, Work(self, number, batch, plan))
            simulation.oracle.done(batch)
            simulation.oracle.recorded(batch, plan)
            if not simulation.config.sweeps_beside:
                simulation.oracle.has_swept(token)
            simulation.stop_here()
            self.checkpoint.commit(batch)
            self.committed = max(self.committed, batch)
            simulation.say("Spark commits batch", batch)
        end()

    def _whole(self, number: int) -> Run:
        """The batches of a run in one process."""
        config, oracle = self.simulation.config, self.simulation.oracle
        driver = RunDriver(
            run=run_id(f"run {number}"),
            query=QUERY,
            sinks=self.sinks,
            log=self.log,
            timing=Timing(
                outage_patience_s=COMMIT_DEADLINE_S,
                sweep_every_s=SOON_S if config.sweeps_beside else config.sweep_every_s,
                sweep_in_background=config.sweeps_beside,
            ),
        )

        def carry_out(asked: on.BatchAsked, work: Work) -> Token | None:
            driver.run_batch(asked, work)
            return driver.state.token

        def end() -> None:
            driver.close()
            oracle.has_swept(driver.state.token)

        return carry_out, end

    def _in_halves(self, number: int) -> Run:
        """The batches of a run as with formats: each begins in one process, and ends in another one."""
        (sink,) = self.sinks.values()
        key = run_id(f"run {number}")
        ends = Ends(sink=sink, log=self.log, query=QUERY, run_key=key, patience_s=COMMIT_DEADLINE_S)

        def carry_out(asked: on.BatchAsked, work: Work) -> Token | None:
            handover = None
            try:
                if (handover := ends.begin(asked)) is None:
                    ends.check_decided(asked.batch)
                    return None
                handles, tried = work.write(handover.owners, handover.effect.only)
                ends.finish(handover, [SlotWritten(handle=one, tried=int(tried)) for one in handles])
            except SparkonceError:
                ends.abort(asked, handover)
                raise
            return handover.state.token

        return carry_out, lambda: None

    def process(self) -> Process:
        """Returns an idle worker, or a new one."""
        if self.idle:
            return self.idle.pop(0)
        self.processes += 1
        return Process(self.simulation, self.processes, self.idle)


def run_id(party: str) -> str:
    """Returns the run of a party, or of one of its threads."""
    return party.partition(",")[0].replace(" ", "-")


class StoredRun:
    """What a driver's processes store about their run while it lives, instead of a file that one of them locks."""

    def __init__(self, key: str) -> None:
        self._kept, self._key = UNDER_WAY[0].kept_runs, key
        self.found: tuple[Claim, Token] | None = None

    def __enter__(self) -> StoredRun:
        self.found = self._kept.get(self._key)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.forget()

    def keep(self, *found: Any) -> None:
        self._kept[self._key] = found

    def forget(self) -> None:
        self._kept.pop(self._key, None)


class Checkpoint(CheckpointFiles):
    """Spark's files on a local disk, with the log next to them. The query reads files, a new one for each plan.

    Attributes:
        written: The files by path, in the order in which they were written.
    """

    location = "/checkpoint"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.written: dict[str, bytes] = {"metadata": json.dumps({"id": QUERY}).encode()}
        self._durable: set[str] = set()
        self._ahead: set[str] | None = None
        self._plans = 0

    def point(self) -> tuple[DecisionLog, ResumePoint]:
        """Replaces `sparkonce.operate.resolve._point`."""
        log = self._cluster.log
        return log, ResumePoint.of(self, read_log(log))

    def plan(self, batch: int) -> int:
        """Spark plans a batch, unless it has done so. Returns the number of the file that the batch reads."""
        listed, offsets = f"sources/0/{batch}", f"offsets/{batch}"
        if offsets not in self.written:
            if listed not in self.written:
                self._plans += 1
                self.written[listed] = f'v1\n{{"path":"{self._plans}","batchId":{batch}}}'.encode()
            self.written[offsets] = f'v1\n{{}}\n{{"logOffset":{batch}}}'.encode()
        if listed not in self.written:
            self._cluster.simulation.oracle.broken(Violation.STRANDED, "Spark: batch", batch, "doesn't exist")
        return int(json.loads(self.written[listed].splitlines()[1])["path"])

    def commit(self, batch: int) -> None:
        """Spark records that a batch is done."""
        self.written.setdefault(f"commits/{batch}", b"v1\n{}")

    def lose_power(self) -> None:
        """Unsynced files are empty, or the newest of them were never there.

        As in a journal, an older name is not lost before a newer one. The newest offsets may be empty although they
        were synced, since some disks confirm too early, and the log has a copy.
        """
        dice = self._cluster.simulation.dice
        unsynced = [name for name in self.written if name not in self._durable]
        for name in unsynced[len(unsynced) - dice.pick(len(unsynced) + 1) :]:
            del self.written[name]
        newest = f"offsets/{SparkCheckpoint(self).begun()}"
        for name in self.written:
            if (name not in self._durable or name == newest) and dice.pick(2):
                self.written[name] = b""
        self._cluster.simulation.say(
            "left:", *(name if data else f"{name} (empty)" for name, data in self.written.items())
        )
        self._durable, self._ahead = set(self.written), None

    def sync_ahead(self) -> None:
        self._ahead = {*self.written, *(self._ahead or ())}

    def sync_spark(self) -> None:
        self._durable |= set(self.written) if self._ahead is None else self._ahead
        self._ahead = None

    def emptied(self) -> Sequence[str]:
        return [name for name, data in self.written.items() if not data]

    def read(self, path: str) -> bytes | None:
        return self.written.get(path)

    def names(self, folder: str) -> list[str]:
        return [name.partition("/")[2] for name in self.written if name.startswith(f"{folder}/")]

    def replace(self, path: str, data: bytes) -> None:
        self.written[path] = data

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.written.pop(path, None)

    def put(self, path: str, data: bytes) -> Landed:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError

    def inside(self, folder: str) -> Checkpoint:
        raise NotImplementedError


class Work:
    """A batch's plan; see `sparkonce.driver.run.BatchWork`."""

    def __init__(self, cluster: Cluster, run: int, batch: int, plan: int) -> None:
        self._cluster = cluster
        self._run = run
        self._batch = batch
        self._plan = plan

    def run_into_nothing(self) -> None:
        self._cluster.simulation.stop_here()

    def is_stopped(self) -> bool:
        return False

    def write(
        self,
        sinks: Mapping[str, Owner],
        only: frozenset[tuple[str, int]] | None,
        computed: Callable[[], None] | None = None,
    ) -> tuple[Sequence[Handle], bool]:
        """Each slot is a task of which Spark may start several attempts. It accepts the first to finish."""
        simulation = self._cluster.simulation
        takes_s = self._takes_s()
        if computed is not None:
            self._let_go_by(takes_s)
            computed()
        stage = Stage(self._cluster, f"{self._run}", self._batch, self._plan, sinks, only)
        for slot in range(len(stage.spread)):
            stage.start(slot)
            if simulation.chance("speculation"):
                stage.start(slot)
        if simulation.peace:
            for attempt in stage.attempts:
                attempt()
        else:
            simulation.wait(lambda: stage.is_over)
        if computed is None:
            self._let_go_by(takes_s)
        if stage.loser_possible or stage.failure is not None:
            for owner in sinks.values():
                simulation.oracle.may_have_lost(owner.token)
        if stage.failure is not None:
            raise stage.failure
        handles = [handle for slot in range(len(stage.spread)) for handle in stage.won[slot]]
        if computed is None and takes_s:
            aged = [handle for handle in handles if self._cluster.systems[handle.sink].life_s is not None]
            simulation.oracle.has_taken_long(aged)
        return handles, stage.loser_possible

    def _takes_s(self) -> float:
        simulation = self._cluster.simulation
        lives = [system.life_s for system in self._cluster.systems.values() if system.life_s is not None]
        if simulation.peace or not simulation.config.long_batches or not lives or not simulation.dice.chance(_LONG):
            return 0.0
        simulation.note("long batch")
        return min(lives) * _LONG_TIMES[simulation.dice.pick(len(_LONG_TIMES))]

    def _let_go_by(self, seconds: float) -> None:
        if not seconds:
            return
        simulation = self._cluster.simulation
        simulation.say("batch", self._batch, "takes", seconds)
        simulation.clock_s += seconds
        for system in self._cluster.systems.values():
            system.age()


class Stage:
    """One execution of a plan."""

    def __init__(
        self,
        cluster: Cluster,
        run: str,
        batch: int,
        plan: int,
        sinks: Mapping[str, Owner],
        only: frozenset[tuple[str, int]] | None,
    ) -> None:
        self.cluster = cluster
        self.run, self.batch, self.plan, self.sinks, self.only = run, batch, plan, sinks, only
        cluster.executions += 1
        self.execution = cluster.executions
        self.spread = self._spread()
        self.won: dict[int, list[Handle]] = {}
        self.failure: PrepareError | None = None
        self.loser_possible = False
        self.started: dict[int, int] = {}
        self.attempts: list[Any] = []

    def _spread(self) -> tuple[tuple[int, ...], ...]:
        """Returns which of the batch's rows each slot has: its own row, unless the plan's result differs."""
        simulation = self.cluster.simulation
        rows = tuple(range(simulation.config.slots))
        one_each = tuple((row,) for row in rows)
        if not simulation.config.spreads or simulation.peace:
            return one_each
        spread = (one_each, (rows,), ((), rows), tuple(reversed(one_each)))[simulation.dice.pick(4)]
        if spread != one_each:
            simulation.say("the slots have the rows", spread)
            simulation.note("spread")
        return spread

    @property
    def is_over(self) -> bool:
        return self.failure is not None or len(self.won) == len(self.spread)

    def start(self, slot: int) -> None:
        """Starts another attempt for a slot."""
        cluster, simulation = self.cluster, self.cluster.simulation
        attempt = self.started[slot] = self.started.get(slot, 0) + 1
        self.loser_possible |= attempt > 1
        cluster.attempts += 1
        number = cluster.attempts
        task = TaskAttempt(self, slot, number)
        if simulation.peace:
            self.attempts.append(task.run)
        else:
            name = f"run {self.run}, batch {self.batch}, slot {slot}, copy {attempt}"
            simulation.start(name, task.run, task.die)

    def failed(self, slot: int, error: PrepareError) -> None:
        """Spark retries a task, but not forever."""
        if self.is_over or slot in self.won:
            return
        self.loser_possible = True
        if self.started[slot] >= MOST_ATTEMPTS or self.cluster.simulation.peace:
            self.failure = error
        else:
            self.start(slot)


class TaskAttempt:
    """One task attempt for a slot, in a worker process: opens, writes in two parts, prepares."""

    def __init__(self, stage: Stage, slot: int, number: int) -> None:
        self._stage, self._slot, self._number = stage, slot, number
        self._process: Process | None = None

    def die(self) -> None:
        """Kills the attempt, along with its process if it already has one."""
        if self._process is not None:
            self._process.die()
        self._stage.failed(self._slot, PrepareError("its process died"))

    @property
    def version(self) -> int:
        """Distinguishes executions that return different rows, because they read other files or for no reason."""
        config = self._stage.cluster.simulation.config
        if config.power_cuts:
            return self._stage.plan
        return 0 if config.deterministic else self._stage.execution

    def run(self) -> None:
        stage, slot = self._stage, self._slot
        cluster = stage.cluster
        simulation = cluster.simulation
        process = self._process = cluster.process()
        process.task = simulation.current
        try:
            written = self.write(process)
        except PrepareError as error:
            simulation.say("fails:", error.message)
            process.leave()
            stage.failed(slot, error)
            return
        simulation.stop_here()
        process.leave()
        if slot not in stage.won:
            simulation.say("has prepared")
            for handle, rows in written:
                if handle.transaction and (self.version or simulation.config.spreads):
                    simulation.oracle.prepared(handle, self.version, rows)
            stage.won[slot] = [handle for handle, _ in written]

    def write(self, process: Process) -> list[tuple[Handle, tuple[int, ...]]]:
        """Writes to each sink, and prepares. Returns the handles, with the rows of each.

        Raises:
            PrepareError: If that failed, and everything is aborted.
        """
        stage, slot, version = self._stage, self._slot, self.version
        cluster = stage.cluster
        simulation = cluster.simulation
        writers: list[Any] = []
        handles = []
        opened_ms = simulation.time_ms(stage.batch) + simulation.config.ahead_s * 1000
        rows = stage.spread[slot]
        asked = stage.sinks if stage.only is None else {name for name, number in stage.only if number == slot}
        begun = asked if rows else ()
        early = {
            name: cluster.systems[name].writer(stage.sinks[name], process, stage.batch, slot, self._number)
            for name in cluster.early
            if name in asked and name in stage.sinks
        }
        try:
            for name, owner in stage.sinks.items():
                writer = early.pop(name, None)
                if writer is None and name in begun:
                    writer = cluster.systems[name].writer(owner, process, stage.batch, slot, self._number)
                writers.append(writer)
                if name in begun:
                    writer.rows = len(rows)
                    writer.begin()
                    writer.write(1)
                    writer.write(1)
            for name, writer in zip(stage.sinks, writers, strict=True):
                fields = writer.prepare() if name in begun else {}
                handles.append(
                    Handle(
                        sink=name,
                        slot=slot,
                        rows=len(rows) * cluster.systems[name].rows_each,
                        fingerprint=sum(version * 10_000 + stage.batch * 100 + row for row in rows),
                        opened_ms=opened_ms if name in begun else 0,
                        transaction=transaction_fields(fields),
                    )
                )
        except PrepareError:
            for writer in (*writers, *early.values()):
                if writer is not None:
                    writer.abort()
            raise
        for writer in writers:
            if writer is not None:
                writer.close()
        return [(handle, rows) for handle in handles]
