"""The whole demo: the verifier with a kill at each point of a commit, then the same query with Spark's own sink."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

from sparkonce.errors import ConfigurationError
from sparkonce.protocol.state import Phase
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.spark_checkpoint import SparkCheckpoint
from sparkonce_lab import run as verifier
from sparkonce_lab.checkers import judge
from sparkonce_lab.checkpoint import QUERY, check_store, new_folder, open_store, with_connector
from sparkonce_lab.conduct import Conductor, RunLimits
from sparkonce_lab.demo.console import Console
from sparkonce_lab.demo.result import CrashPoint, Kill, Result, Variant, compare, standing
from sparkonce_lab.errors import RunFailedError
from sparkonce_lab.faults import Fault
from sparkonce_lab.history import OBSERVED, Event, EventKind, Recorder
from sparkonce_lab.kafka import scan
from sparkonce_lab.query import QueryConfig
from sparkonce_lab.rig.kafka import KAFKA_VERSION, Cluster, spark_kafka_jars
from sparkonce_lab.rig.process import end_on_signals
from sparkonce_lab.schedule import Step
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.store import CheckpointStore
from sparkonce_lab.verdicts import Anomaly
from sparkonce_lab.workload import Feeder, Workload

WHOLE_BATCHES = 2
"""The number of batches finished before each kill: the batch that a start recovers, and one more."""
STEP_S = 120.0
"""The time limit of any one step, in seconds. Starting Spark and running a few batches take a tenth of it."""
_QUERY = "sparkonce_lab.demo.query"
_QUIET_S = 0.5
_ANSWERS_WITHIN_S = 10.0
_MISSES_AT_MOST = 3
_NEEDED = (Anomaly.MISSING, Anomaly.DOUBLED, Anomaly.UNEXPECTED, Anomaly.EARLY, Anomaly.LINGERING)


def new_workload(rows_per_second: int, seed: int) -> Workload:
    """Generates the orders, each with a customer, an amount in cents and an event time, for windows of one second."""
    return Workload(seed=seed, keys=100, skew=0.0, rows_per_second=rows_per_second, window_ms=1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The parts that both halves of the demo share.

    Attributes:
        bootstrap: The ``bootstrap.servers`` of a broker that nothing else uses.
        folder: The folder for checkpoints, logs and temporary files.
        workload: The orders.
        console: Shows what happens.
        checkpoints: The user's folder for checkpoints; None to use ``folder``.
        conf: Spark's settings for the checkpoints' store.
    """

    bootstrap: str
    folder: Path
    workload: Workload
    console: Console
    checkpoints: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


class Output(KafkaSystem):
    """The topics of one query, which remain on the broker.

    Once the topic was read, `aborted_rows` is the number of rows that only a read_uncommitted reader sees.
    """

    keep_place = True
    aborted_rows = 0

    def read(self) -> pa.Table:
        seen = super().read()
        self.aborted_rows = sum(map(len, scan(self.settings, self.target, "READ_UNCOMMITTED"))) - len(seen)
        return seen


class Narrator:
    """Shows a run while it happens, and determines at each kill how far the batch had progressed."""

    def __init__(self, context: Context, checkpoint: CheckpointFiles) -> None:
        self.kills: list[Kill] = []
        self._console = context.console
        self._bootstrap = context.bootstrap
        self._checkpoint = checkpoint
        self._recovering = False
        self._seen = "nothing"

    def hear(self, event: Event) -> None:
        told = event.fields
        match event.kind:
            case EventKind.START:
                self._recovering = bool(self.kills)
                self._console.say("start", f"number {told['driver']}, process {told['pid']}")
            case EventKind.PHASE:
                now = f"batch {told['batch']}: {Phase[told['phase']].value}"
                self._console.status(f"{now} · a read_committed reader has seen {self._seen}")
            case EventKind.SEEN:
                self._seen = f"batch {told['batch']}"
            case EventKind.BATCH if self._recovering:
                self._recovering = False
                was = "decided: its transactions are committed"
                was = was if told["recovered"] else "not decided: undone and run again"
                self._console.say("recovered", f"batch {told['batch']} was {was}", "green")
            case EventKind.FAULT:
                point, found = CrashPoint(told["aimed"]), standing(self._bootstrap, self._checkpoint, told["batch"])
                kill = Kill(
                    driver=told["driver"],
                    point=point.words,
                    batch=told["batch"],
                    proved=told["held"] and found.proves(point),
                    standing=found.words,
                )
                self.kills.append(kill)
                show_kill(self._console, len(self.kills), kill)
                self._console.detail(f"a read_committed reader has seen {self._seen}")
            case EventKind.ENDED if told["code"] != -signal.SIGKILL:
                for kill in self.kills:
                    kill.proved = kill.proved and kill.driver != told["driver"]
            case EventKind.FED:
                self._console.say("orders", f"stopped after {told['rows']:,}")


def show_kill(console: Console, number: int, kill: Kill) -> None:
    """Shows a kill with its evidence."""
    console.say(f"KILL {number}", f"batch {kill.batch}, {kill.point}", "bold red")
    console.detail(kill.standing if kill.proved else f"NOT WHERE IT WAS MEANT TO BE: {kill.standing}")


def with_sparkonce(context: Context) -> Variant:
    """Runs the verifier with one kill at each point of the protocol."""
    began, folder, workload = time.monotonic(), context.folder / "sparkonce", context.workload
    context.console.title("with sparkonce")
    output = Output(context.bootstrap, partitions=workload.partitions)
    store = CheckpointStore(context.checkpoints, context.conf) if context.checkpoints else None
    narrator = Narrator(context, store.files if store else LocalFiles(folder / "checkpoint" / QUERY))
    options = verifier.Options(
        source=output,
        systems=[output],
        folder=folder,
        seed=workload.seed,
        rows=1,
        workload=workload,
        wanted=[Fault.DRIVER_KILLED],
        schedule=[
            Step(number=number, fault=Fault.DRIVER_KILLED, phase=point.value, batches=WHOLE_BATCHES)
            for number, point in enumerate(CrashPoint, start=1)
        ],
        fresh_end=False,
        undisturbed=False,
        store=store,
        module=_QUERY,
        watch=narrator.hear,
    )
    history = verifier.run(options, lambda text: context.console.say("verifier", text))
    verdicts = judge(history)
    found = {one: sum(verdict.count for verdict in verdicts if verdict.anomaly is one) for one in Anomaly}
    for verdict in verdicts:
        for example in verdict.examples:
            context.console.detail(f"{verdict.anomaly.value}: {example}")
    return Variant(
        title="with sparkonce",
        kills=tuple(narrator.kills),
        count=compare(history.expected, history.observed.get(output.name, OBSERVED.empty_table())),
        seen_uncommitted=found[Anomaly.EARLY],
        left_open=found[Anomaly.LINGERING],
        aborted_rows=output.aborted_rows,
        seconds=time.monotonic() - began,
        checked=history.came_to_its_end
        and not found[Anomaly.STOPPED]
        and all(verdict.looked_at for verdict in verdicts if verdict.anomaly in _NEEDED),
    )


def with_sparks_own(context: Context) -> Variant:
    """Kills the query with Spark's own sink between a batch's first row in the topic and Spark's record of the batch.

    Spark's sink neither prepares nor decides, so there is only one gap to hit instead of three. Every kill hits it.
    """
    began, folder, workload = time.monotonic(), context.folder / "spark", context.workload
    title = "with Spark's own Kafka sink"
    context.console.title(title)
    files: CheckpointFiles = LocalFiles(folder / "checkpoint")
    if context.checkpoints:
        files = open_store(new_folder(context.checkpoints, "demo"), context.conf)
        check_store(files)
    output = Output(context.bootstrap, partitions=workload.partitions)
    output.place()
    logs = folder / "logs"
    logs.mkdir(parents=True)
    recorder = Recorder(folder, Narrator(context, files).hear)
    feeder = Feeder(output.settings, output.source, workload)
    config = QueryConfig(
        source=output.settings,
        topic=output.source,
        sinks={},
        checkpoint=files.location,
        conf=with_connector(files.location, context.conf),
        temporary=str(folder / "tmp"),
        jars=tuple(map(str, spark_kafka_jars())),
        window_ms=workload.window_ms,
        plain_to=output.target,
    )
    conductor = Conductor(
        config, checkpoint=files, module=_QUERY, folder=logs, recorder=recorder, limits=RunLimits(), check=feeder.check
    )
    spark = SparkCheckpoint(files)
    try:
        feeder.start()
        kills = []
        for number in range(1, len(CrashPoint) + 1):
            kills.append(_kill_before_the_record(conductor, spark, _end_of(output), context.console))
            show_kill(context.console, number, kills[-1])
        _start(conductor, spark)
        feeder.stop()
        conductor.pause(_QUIET_S)
        feeder.close_windows()
        closed_ms = feeder.closed_at_ms()
        conductor.need(lambda: spark.finished_watermark_ms() >= closed_ms, STEP_S, "all windows are closed")
        conductor.stop()
        recorder.note(EventKind.FED, rows=feeder.written)
        count = compare(workload.expected(feeder.written), output.read())
    finally:
        for end in (conductor.end, feeder.stop, output.stop, recorder.close):
            with suppress(Exception):  # Only the first failure is reported.
                end()
    aborted, seconds = output.aborted_rows, time.monotonic() - began
    return Variant(title=title, kills=tuple(kills), count=count, aborted_rows=aborted, seconds=seconds)


def _start(conductor: Conductor, spark: SparkCheckpoint) -> None:
    """Starts a driver, and waits until it has finished some batches."""
    conductor.start()
    enough = spark.finished() + WHOLE_BATCHES
    conductor.need(lambda: spark.finished() >= enough, STEP_S, f"{WHOLE_BATCHES} batches are finished")


def _end_of(output: KafkaSystem) -> Callable[[], int]:
    """Returns a function that adds up the end offsets of all partitions of the output topic, on one connection."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({**output.settings, "log_level": 3})
    asked = {TopicPartition(output.target, each): OffsetSpec.latest() for each in range(output.partitions)}
    return lambda: sum(int(found.result(_ANSWERS_WITHIN_S).offset) for found in admin.list_offsets(asked).values())


def _kill_before_the_record(
    conductor: Conductor, spark: SparkCheckpoint, end: Callable[[], int], console: Console
) -> Kill:
    """Starts the query, and kills it once the topic has rows of a batch that Spark has not recorded as committed."""
    watched, before, now = -1, -1, -1

    def has_unrecorded_rows() -> bool:
        nonlocal watched, before, now
        begun, now = spark.begun(), end()
        if begun != watched:
            watched, before = begun, now
        return before < now and spark.is_unrecorded(watched)

    for _ in range(_MISSES_AT_MOST + 1):
        _start(conductor, spark)
        watched, before = spark.begun(), end()
        conductor.need(has_unrecorded_rows, STEP_S, "the topic has rows of a batch that Spark has not recorded")
        driver, conductor.driver = conductor.driver, None
        if driver is not None:
            conductor.kill(driver)
        if driver is not None and spark.is_unrecorded(watched):
            evidence = f"checkpoint: offsets/{watched} and no commits/{watched}"
            return Kill(
                driver=driver.number,
                point="after its first rows, before Spark's record of it",
                batch=watched,
                proved=True,
                standing=f"{evidence}; topic: at least {now - before:,} rows of the batch",
            )
        console.say("missed", "Spark recorded the batch before it died; trying again")
    raise RunFailedError(
        f"Spark's own sink could not be killed between rows and record, {_MISSES_AT_MOST + 1} times.",
        next_step="Run it again, or with --no-compare.",
    )


def run(
    console: Console,
    *,
    rows_per_second: int,
    seed: int,
    keep: Path | None,
    compare: bool,
    checkpoint: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> Result:
    """Runs the demo.

    Args:
        console: Shows what happens.
        rows_per_second: The rate of the orders.
        seed: The same seed generates the same orders.
        keep: A new or empty folder in which broker, checkpoints, logs and history remain; None for a temporary folder.
        compare: True to kill a query with Spark's own Kafka sink as well.
        checkpoint: The user's folder in which folders for the checkpoints are created; None for temporary local
            folders.
        conf: Spark's settings for the checkpoints' store.

    Raises:
        ConfigurationError: If Java or PySpark is missing, the folder to keep is not empty, or no checkpoint can be
            written.
        RunFailedError: If the demo cannot be completed.
    """
    began = time.monotonic()
    with end_on_signals(), _folder(keep) as folder:
        console.status("fetching jars (the first time only)")
        spark_kafka_jars()
        console.status("a broker starts")
        with Cluster(folder=folder / "kafka") as cluster:
            workload = new_workload(rows_per_second, seed)
            console.say("broker", f"Kafka {KAFKA_VERSION} on {cluster.bootstrap}")
            console.say("engine", f"Spark {version('pyspark')}, two cores")
            console.say("orders", f"{rows_per_second:,} a second, in {workload.partitions} partitions; seed {seed}")
            context = Context(
                bootstrap=cluster.bootstrap,
                folder=folder,
                workload=workload,
                console=console,
                checkpoints=checkpoint,
                conf=conf or {},
            )
            try:
                ours = with_sparkonce(context)
                without = with_sparks_own(context) if compare else None
            finally:
                if keep is None:
                    cluster.brokers[0].kill()  # The broker's data is deleted anyway.
    return Result(with_sparkonce=ours, without=without, seconds=time.monotonic() - began)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="sparkonce-demo-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise ConfigurationError(f"--keep {keep} is not an empty folder.", next_step="Name a new one.")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.absolute()
