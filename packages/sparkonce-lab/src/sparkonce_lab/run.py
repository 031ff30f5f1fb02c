"""A whole verification: starts systems, writes rows, carries out the schedule, then reads, judges and reports."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.spark_checkpoint import SparkCheckpoint
from sparkonce_lab.checkers import judge
from sparkonce_lab.checkpoint import QUERY, StoredCheckpoint, checkpoint_away, checkpoint_disk, with_connector
from sparkonce_lab.child import Driver
from sparkonce_lab.conduct import Conductor, RunLimits, StuckError
from sparkonce_lab.errors import RunFailedError
from sparkonce_lab.faults import Fault
from sparkonce_lab.history import ROWS, Event, EventKind, History, Recorder, load
from sparkonce_lab.query import FAST_START, QueryConfig
from sparkonce_lab.rig.kafka import spark_kafka_jars
from sparkonce_lab.rig.process import end_on_signals
from sparkonce_lab.schedule import Step, draw
from sparkonce_lab.strike import Striker, check_steps, choices, hindrances, words_of
from sparkonce_lab.systems.base import VerifiedSystem
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.store import CheckpointStore
from sparkonce_lab.watch import Readers, has_log, note_violation
from sparkonce_lab.workload import Feeder, Workload

Say = Callable[[str], None]
INSIST_S = 120.0
_AGAIN_S = 1.0
Answer = TypeVar("Answer")
_FIRST_BATCH_S = 300.0
_DRAIN_S = 300.0
_SLOWEST_ROWS_PER_S = 2_000
_UNDISTURBED_S = 900.0
_ASK_EVERY_S = 0.2
_QUIET_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of a run.

    Attributes:
        source: The Kafka with the source, which is also the system ``kafka`` if ``systems`` includes it.
        systems: The systems that the query writes to.
        folder: A new folder for history, logs, and report.
        seed: The seed of the workload and the schedule.
        rows: The minimum number of rows.
        workload: The rows to write.
        faults: The number of faults.
        every_s: The minimum time from one fault to the next, in seconds.
        wanted: The faults to inject. Defaults to all faults that are possible.
        schedule: A schedule to use instead of drawing one.
        fresh_end: True if a new driver finishes the last rows; False for the running driver.
        undisturbed: True to compare the rows with those of an undisturbed query.
        limits: The limits of all waits.
        store: The checkpoint's store; None for a local disk.
        module: The query's module.
        java_flags: Flags for the drivers' JVMs.
        addresses: The addresses of the user's own systems, by name, without credentials.
        watch: Called with each event of the history; see `Recorder`.
    """

    source: KafkaSystem
    systems: Sequence[VerifiedSystem]
    folder: Path
    seed: int
    rows: int
    workload: Workload
    faults: int = 12
    every_s: float = 0.0
    wanted: Sequence[Fault] = ()
    schedule: Sequence[Step] | None = None
    fresh_end: bool = True
    undisturbed: bool = True
    limits: RunLimits = field(default_factory=RunLimits)
    store: CheckpointStore | None = None
    module: str = "sparkonce_lab.query"
    java_flags: str = FAST_START
    addresses: Mapping[str, str] = field(default_factory=dict)
    watch: Callable[[Event], None] = lambda _: None


def run(options: Options, say: Say) -> History:
    """Carries out a run, and returns the recorded history.

    Raises:
        ConfigurationError: If something that was requested is not possible.
        PreflightError: If a system is unavailable.
        RunFailedError: If the verification cannot be completed.
    """
    if not Path("/proc/self/stat").exists():
        raise ConfigurationError(
            "sparkonce verify needs Linux: it finds the processes that it kills in /proc.",
            next_step="Run it on Linux, or in a container.",
        )
    versions = _versions()
    with end_on_signals(), ExitStack() as stack:
        recorder = Recorder(options.folder, options.watch)
        stack.callback(recorder.close)
        for system in _all(options):
            say(f"{system.name} starts")
            stack.callback(_stop, system, say)
            _start(system, options.folder / system.name)
        if options.store is not None:
            stack.callback(_stop, options.store, say)
            _start(options.store, options.folder / "store")
        checkpoint = stack.enter_context(_checkpoint(options, options.folder / "checkpoint", say))
        stack.callback(_try, lambda: _keep_what_was_found(load(options.folder), options, say), say)
        _Run(options, recorder, checkpoint, say, versions).carry_out()
    return load(options.folder)


def _checkpoint(options: Options, folder: Path, say: Say) -> AbstractContextManager[StoredCheckpoint]:
    if options.store is None and options.wanted and Fault.LOG_DISK_FULL not in options.wanted:
        return nullcontext(StoredCheckpoint(files=LocalFiles(folder / QUERY)))
    if options.store is None:
        return checkpoint_disk(folder, say)
    say(f"the checkpoint is in {options.store.files.location}")
    return checkpoint_away(options.store.files, folder, say)


def _start(system: VerifiedSystem | CheckpointStore, folder: Path) -> None:
    try:
        system.start(folder)
        if isinstance(system, VerifiedSystem):
            system.place()
    except ModuleNotFoundError as error:
        raise PreflightError(
            f"The system {system.name} needs the package {error.name}, which is not installed.",
            next_step=f"pip install 'sparkonce[{system.name}]'",
        ) from error


def _stop(system: VerifiedSystem | CheckpointStore, say: Say) -> None:
    """Stops a system. A failure is reported, but changes neither the verdict nor an earlier error."""
    _try(system.stop, lambda why: say(f"{system.name} could not be cleaned up: {why}"))


def _try(end: Callable[[], None], say: Say) -> None:
    try:
        end()
    except Exception as error:  # noqa: BLE001 - the other systems must be stopped after any error
        say(str(error) or repr(error))


def _keep_what_was_found(history: History, options: Options, say: Say) -> None:
    """Keeps the rows on the user's own servers for inspection if they are not the expected ones."""
    if not options.addresses or not any(verdict.count for verdict in judge(history) if verdict.system):
        return
    for system in _all(options):
        if system.name in options.addresses:
            system.keep_place = True
            say(f"{system.name}: what the query wrote is kept there for inspection; its name begins with sparkonce")


def _versions() -> dict[str, str]:
    try:
        return {name: version(name) for name in ("sparkonce", "pyspark", "confluent-kafka")}
    except PackageNotFoundError as error:
        raise PreflightError(
            f"The package {error.name} is not installed.", next_step=f"pip install {error.name}"
        ) from error


def _all(options: Options) -> list[VerifiedSystem]:
    """Lists the systems, with the source's system first."""
    others = [system for system in options.systems if system is not options.source]
    return [options.source, *others]


class _Run:
    def __init__(
        self, options: Options, recorder: Recorder, checkpoint: StoredCheckpoint, say: Say, versions: Mapping[str, str]
    ) -> None:
        self._versions = versions
        self._options = options
        self._recorder = recorder
        self._say = say
        self._checkpoint = checkpoint.files
        self._disk = checkpoint.disk
        disk, store = checkpoint.disk is not None, options.store
        source = options.source
        why = hindrances(options.systems, source, disk=disk, store=store)
        wanted = options.wanted or list(Fault)
        if told := words_of({one: reason for one, reason in why.items() if one[0] in wanted}):
            say(f"cannot be injected here: {told}")
        found = choices(options.systems, source, disk=disk, wanted=wanted, store=store)
        drawn = options.schedule if options.schedule is not None else draw(options.seed, options.faults, found)
        self._steps = list(drawn)
        check_steps(self._steps, found, why)
        if not any(step.fault is Fault.EXPIRED for step in self._steps):
            # The check for open transactions must find those that the product leaves behind, so the broker must not
            # abort them first.
            source.transaction_timeout_s = None
        self._feeder = Feeder(source.settings, source.source, options.workload)
        self._readers = Readers(options.systems, self._checkpoint, recorder)
        self._config = QueryConfig(
            source={**source.settings, "bootstrap.servers": source.client_bootstrap},
            topic=source.source,
            sinks={system.name: system.sink_settings() for system in options.systems},
            checkpoint=self._checkpoint.location,
            conf={
                **(with_connector(self._checkpoint.location, store.conf) if store is not None else {}),
                **{name: value for system in options.systems for name, value in system.session.items()},
            },
            temporary=str(options.folder / "tmp"),
            jars=tuple(map(str, [*spark_kafka_jars(), *(jar for system in options.systems for jar in system.jars())])),
            window_ms=options.workload.window_ms,
            java_flags=options.java_flags,
            refuse_every=source.refuse_every,
            dead_letters="" if source.dead_letters is None else str(source.dead_letters),
        )
        logs = options.folder / "logs"
        logs.mkdir()
        self._conductor = Conductor(
            self._config,
            checkpoint=self._checkpoint,
            module=options.module,
            folder=logs,
            recorder=recorder,
            limits=options.limits,
            check=self._feeder.check,
        )

    def carry_out(self) -> None:
        """Carries out the whole run. After an error, everything found so far is still recorded."""
        conductor = self._conductor
        self._note_began()
        striker = Striker(
            conductor,
            {system.name: system for system in _all(self._options)},
            store=self._options.store,
            seed=self._options.seed,
            disk=self._disk,
            expiry_s=self._options.source.transaction_timeout_s or 0.0,
            every_s=self._options.every_s,
        )
        try:
            self._feeder.start()
            self._readers.start()
            striker.start(self._steps, beside=True)
            if not conductor.wait(lambda: conductor.finished > 0, _FIRST_BATCH_S):
                raise RunFailedError(
                    f"The query has not finished a batch in {_FIRST_BATCH_S:.0f} s, although no fault has been "
                    "injected.",
                    next_step=f"Read the logs in {self._options.folder / 'logs'}; perhaps the machine is too slow.",
                )
            self._say("the query runs; faults begin")
            striker.carry_out(self._steps)
            longest_s = 2.0 * self._options.rows / self._options.workload.rows_per_second + 60.0
            if not conductor.wait(lambda: self._feeder.written >= self._options.rows, longest_s):
                raise RunFailedError(
                    f"The source takes fewer rows than --rate {self._options.workload.rows_per_second} a second.",
                    next_step="Ask for fewer.",
                )
            disturbed = self._drain()
            self._read()
            if self._options.undisturbed:
                self._say("the same query once more, undisturbed")
                with noting("the same query, undisturbed", self._recorder, self._say):
                    self._run_undisturbed(disturbed)
            self._recorder.note(EventKind.FINISHED)
        except StuckError as stuck:
            self._say(str(stuck))
            self._end()
            self._read()
        except Exception:
            # The error itself proves nothing about the query, but the rows in the systems may.
            self._end()
            self._read()
            raise
        finally:
            self._end()

    def _end(self) -> None:
        """Ends everything that is running, drivers first.

        Reports errors instead of raising them, so that they do not hide an earlier error.
        """
        for end in (self._conductor.end, self._readers.stop, self._feeder.stop):
            _try(end, self._say)

    def _drain(self) -> Driver | None:
        """Lets a driver finish everything that was written, and close every window."""
        conductor = self._conductor
        self._feeder.stop()
        self._recorder.note(EventKind.FED, rows=self._feeder.written)
        if self._options.fresh_end:
            conductor.stop()
        # Spark looks up the partitions' end offsets one by one, so the row that closes windows must be the last to
        # arrive.
        else:
            conductor.pause(_QUIET_S)
        self._feeder.close_windows()
        self._say(f"{self._feeder.written:,} rows written; the last windows are closed")
        if self._options.fresh_end:
            conductor.start(slots=0)
        conductor.need(
            self._has_come_to(self._feeder.closed_at_ms()),
            _DRAIN_S + self._feeder.written / _SLOWEST_ROWS_PER_S,
            "every window has been emitted",
        )
        return conductor.stop()

    def _has_come_to(self, watermark_ms: int) -> Callable[[], bool]:
        """Returns a function that checks, at intervals, if a batch with at least this watermark is finished."""
        checkpoint, asked_at = SparkCheckpoint(self._checkpoint), 0.0

        def has_come() -> bool:
            nonlocal asked_at
            if time.monotonic() - asked_at < _ASK_EVERY_S:
                return False
            with suppress(OSError):  # A later call queries the store again.
                if checkpoint.finished_watermark_ms() >= watermark_ms:
                    return True
            asked_at = time.monotonic()
            return False

        return has_come

    def _read(self) -> None:
        self._say("reading what readers see")
        self._readers.stop()
        with noting("the decision log", self._recorder, self._say):
            if has_log(self._checkpoint):
                note_violation(self._recorder, self._checkpoint, self._conductor.started)
        self._recorder.keep("expected", self._options.workload.expected(self._feeder.written))
        read_systems(self._options.systems, self._recorder, self._say)

    def _run_undisturbed(self, disturbed: Driver | None) -> None:
        """Runs the same query without faults on the same rows, with a separate checkpoint, for comparison."""
        folder = self._options.folder / "undisturbed"
        config = replace(self._config, checkpoint=str(folder / "checkpoint"), plain_to=str(folder / "rows"), trigger="")
        log, temporary = self._options.folder / "logs" / "undisturbed.log", Path(self._config.temporary)
        driver = Driver(0, config.to_json(), log=log, temporary=temporary, module=self._options.module)
        try:
            driver.wait(_UNDISTURBED_S)
        finally:
            driver.kill()
        list(driver.news())
        if driver.error or driver.exit_code() != 0:
            raise RunFailedError(
                f"The undisturbed query failed: {driver.error or driver.exit_code()}.", next_step=f"Read {log}."
            )
        self._recorder.keep("undisturbed", _parquet(folder / "rows"))
        before = disturbed.state_rows if disturbed is not None else None
        if before is not None and driver.state_rows is not None:
            self._recorder.note(EventKind.STATE, disturbed=before, undisturbed=driver.state_rows)

    def _note_began(self) -> None:
        self._recorder.note(
            EventKind.BEGAN,
            seed=self._options.seed,
            workload=self._options.workload.to_json(),
            systems=[system.name for system in self._options.systems],
            guarantee="exactly-once",
            versions={
                **self._versions,
                "python": platform.python_version(),
                "system": platform.platform(),
                "cores": os.cpu_count(),
            },
            schedule=[step.to_json() for step in self._steps],
            rows=self._options.rows,
            every_s=self._options.every_s,
            brokers=self._options.source.nodes,
            refuse_every=self._options.source.refuse_every,
            places=dict(self._options.addresses),
            checkpoint=self._options.store.location if self._options.store else "",
            conf=self._options.store.conf_names if self._options.store else [],
            kafka_config=sorted(self._options.source.settings.keys() - {"bootstrap.servers"}),
            limits=self._options.limits.to_json(),
        )


def _parquet(folder: Path) -> pa.Table:
    import pyarrow.dataset as ds

    paths = [str(path) for path in sorted(folder.glob("*.parquet"))]
    if not paths:
        return ROWS.empty_table()
    return ds.dataset(paths, format="parquet").to_table(columns=ROWS.names).cast(ROWS)


def read_systems(
    systems: Sequence[VerifiedSystem], recorder: Recorder, say: Say, *, insist_s: float = INSIST_S
) -> None:
    """Reads every system, and records which ones could not be read."""
    for system in systems:
        with noting(f"the rows in {system.name}", recorder, say):
            recorder.keep(f"observed-{system.name}", _insist(system.read, insist_s))
        with noting(f"what {system.name} holds open", recorder, say):
            recorder.note(EventKind.OPEN, system=system.name, names=list(_insist(system.left_open, insist_s)))


@contextmanager
def noting(what: str, recorder: Recorder, say: Say) -> Iterator[None]:
    """Records what cannot be read, and lets everything else be read. The verdict shows what was not checked."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as above
        why = str(error) or repr(error)
        say(f"{what}: not read: {why}")
        recorder.note(EventKind.UNREAD, what=what, why=why)


def _insist(question: Callable[[], Answer], insist_s: float) -> Answer:
    """Retries a request while a system does not respond, because a fault may just have struck it."""
    give_up_at = time.monotonic() + insist_s
    while True:
        try:
            return question()
        except Exception:
            if time.monotonic() + _AGAIN_S > give_up_at:
                raise
        time.sleep(_AGAIN_S)
