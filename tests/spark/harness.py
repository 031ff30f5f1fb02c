"""A job: a query with its checkpoint, source and targets across its runs, held, killed and judged by the tests."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from eventually import LIMIT_S, eventually
from kafka_transactions import await_aborted, await_markers, transactions_of
from spark.pipeline import ENDED, KAFKA, PHASE, REFUSED, Config
from sparkonce.decision_log import DecisionLog
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import LogView
from sparkonce.storage.local import LocalFiles
from sparkonce_lab.kafka import Record, Transaction, create_topic, produce, read_committed
from sparkonce_lab.rig.child import Child, session_of
from sparkonce_lab.rig.kafka.jars import spark_kafka_jars
from sparkonce_lab.rig.process import last_lines
from startup import jvm_flags
from striking.gate import Arrival, Gate, Hold
from striking.points import BEFORE_CONCLUDE, BEGIN, FIRST, HALFWAY, IN_DRIVER, PREPARED, WRITTEN

if TYPE_CHECKING:
    from typing_extensions import Self

    from sparkonce_lab.systems.base import VerifiedSystem

TESTS = Path(__file__).parent.parent
PARTITIONS = 4

Row = tuple[str, str]
"""The key and value of an output row, if the job specifies them."""

Rows = Counter[tuple[str, int]]
"""How often each row, given by its id, appears somewhere under a batch number."""

Message = tuple[bytes, bytes | None]
"""Key and value of a row of a source."""


def new_name(start: str) -> str:
    return f"{start}-{secrets.token_hex(4)}"


# --- processes --------------------------------------------------------------------------------------------------------


def path_of_tests() -> dict[str, str]:
    """Returns the environment in which Python finds the test modules."""
    folders = [str(TESTS), str(TESTS / "spark" / "python_daemon"), os.environ.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


class Run(Child):
    """One start of the driver of one or more queries, in a separate process session."""

    def __init__(self, configs: Sequence[Config], log: Path, env: Mapping[str, str] | None = None) -> None:
        own, temporary = {**(env or {}), **path_of_tests()}, Path(configs[0].temporary)
        texts = [config.to_json() for config in configs]
        super().__init__(texts, log=log, temporary=temporary, module="spark.pipeline", env=own)

    def check(self) -> None:
        """Raises an error with the end of its log if it has ended."""
        code = self.exit_code()
        assert code is None, f"the query ended with {code}:\n{last_lines(self.log, 40)}"

    def kill(self, *, spare: Collection[int] = ()) -> None:
        """Kills the driver, the JVM and the workers at once (SIGKILL), and waits until they are gone.

        The spared workers survive as orphans and continue to write.
        """
        if self._is_gone:
            return
        members = [pid for pid in session_of(self.pid) if pid not in spare]
        if spare:  # PySpark's daemon would end its workers once the JVM is gone, so kill it first
            members.sort(key=lambda pid: b"pyspark.daemon" not in command_of(pid))
        for pid in members:
            kill(pid)
        if spare:
            self._process.wait()
            eventually(lambda: set(session_of(self.pid)) <= set(spare), "all but the orphans are gone")
        else:
            super().kill()

    def join(self, *, limit_s: float = LIMIT_S) -> int:
        """Waits until it and all of its child processes have ended on their own, and returns its exit code."""
        self.wait(limit_s)
        eventually(lambda: not session_of(self.pid), f"the processes of session {self.pid} are gone")
        self.kill()
        return self._process.returncode

    def finish(self, *, limit_s: float = LIMIT_S) -> None:
        """Waits until it has written its complete sources and has ended."""
        code = self.join(limit_s=limit_s)
        assert code == 0, f"the query ended with {code}:\n{last_lines(self.log, 40)}"


def kill_executor(worker: int) -> None:
    """Ends the executor of a Python worker, and the daemon that would end the worker, but not the worker itself."""
    daemon = _parent(worker)
    jvm = _parent(daemon)
    assert b"CoarseGrainedExecutorBackend" in command_of(jvm), command_of(jvm)
    kill(daemon)
    kill(jvm)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def command_of(pid: int) -> bytes:
    """Returns the command line of a process; empty if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


# --- jobs -------------------------------------------------------------------------------------------------------------


class AnyJob:
    """The source topics, target systems and checkpoint of a query, and everything that runs on them.

    Use it as a context manager. Systems other than Kafka are started already, and have a table or folder with the
    columns ``id`` and ``batch``. The settings are additional ones of the Kafka sink.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        *,
        sources: int = 1,
        settings: Mapping[str, Any] | None = None,
        systems: Sequence[VerifiedSystem] = (),
        **config: Any,
    ) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.gate = Gate()
        self.runs: list[Child] = []
        self.systems = {system.name: system for system in systems}
        target = config.get("target") or new_name("target")
        kafka = {"settings": {"bootstrap.servers": bootstrap, **(settings or {})}, "topic": target}
        self.config = Config(
            **{
                "bootstrap": bootstrap,
                "sources": tuple(new_name("source") for _ in range(sources)),
                "target": target,
                "checkpoint": str(folder / "checkpoint"),
                "temporary": str(folder / "temporary"),
                "jars": () if config.get("files") else tuple(str(jar) for jar in spark_kafka_jars()),
                "jvm_flags": jvm_flags(),
                "gate": self.gate.address,
                "sinks": {KAFKA: kafka, **{name: system.arguments() for name, system in self.systems.items()}},
                **config,
            }
        )
        self._sent = [0] * sources

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        for topic in (*self.config.sources, self.config.target):
            create_topic(self.bootstrap, topic, PARTITIONS)
        self.gate.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.runs:
            run.resume()
            run.kill()
        self.gate.__exit__()

    def send(self, messages: Sequence[Message], source: int = 0) -> None:
        """Sends messages to the partitions round-robin: message n of a source is number n // 4 in partition n % 4."""
        first, self._sent[source] = self._sent[source], self._sent[source] + len(messages)
        rows = (
            {"key": key, "value": value, "partition": number % PARTITIONS}
            for number, (key, value) in enumerate(messages, first)
        )
        produce(self.bootstrap, self.config.sources[source], rows, timeout_s=LIMIT_S)

    @property
    def checkpoint(self) -> Path:
        return Path(self.config.checkpoint)

    def start(self, **changed: Any) -> Run:
        """Starts the query on its checkpoint."""
        return start_together([self], self.folder / f"run-{len(self.runs)}.log", **changed)

    def log(self) -> LogView:
        return DecisionLog(LocalFiles(self.checkpoint)).read(LogView())

    def decided(self) -> int:
        """The last batch that the log has decided now, or -1. Batches are decided in order and without gaps."""
        newest = self.log().newest_decision if (self.checkpoint / "sparkonce").is_dir() else None
        return newest.batch if newest is not None else -1

    @property
    def query(self) -> str:
        """The short form of the query's id."""
        return short_query(str(json.loads((self.checkpoint / "metadata").read_text())["id"]))

    def phase(self) -> Arrival | None:
        """The last point that the newest run arrived at."""
        return self.gate.last(PHASE)

    def transactions(self, *states: str) -> dict[str, Transaction]:
        """Returns the query's own transactions on the broker, optionally only those in one of these states."""
        return transactions_of(self.bootstrap, self.query, *states)

    def await_aborted(self) -> None:
        """Waits until the broker has aborted the query's transactions that are past their timeout."""
        await_aborted(self.bootstrap, self.query)

    def records(self) -> list[Record]:
        """Reads the topic with read_committed, after waiting for the markers of all transactions that have ended."""
        await_markers(self.bootstrap, self.query)
        return read_committed(self.bootstrap, self.config.target, timeout_s=LIMIT_S)

    def row(self, record: Record) -> Row:
        """A record without the number of its batch, which `spark.pipeline` puts before its value."""
        return (record.key or b"").decode(), (record.value or b"").decode(errors="backslashreplace").partition(" ")[2]

    def visible(self) -> dict[str, Rows]:
        """Reads each system."""
        told = [((one.key or b"").decode(), (one.value or b"").split()[0]) for one in self.records()]
        found = {name: Counter(system.visible("id", "batch")) for name, system in self.systems.items()}
        return {KAFKA: Counter((key, int(batch)) for key, batch in told), **found}

    def open(self) -> dict[str, Sequence[str]]:
        """Queries each system for the query's transactions that are neither committed nor aborted."""
        known = (self.checkpoint / "metadata").exists()
        found = {name: system.left_open() for name, system in self.systems.items()}
        return {KAFKA: list(self.transactions("Ongoing")) if known else [], **found}

    def judge(self, expected: Counter[Row]) -> str:
        """Returns what is wrong on the broker, in numbers; empty if exactly these rows are there, and none is open."""
        assert expected
        found = Counter(self.row(record) for record in self.records())
        excess = found - expected
        doubled = sum(count for row, count in excess.items() if row in expected)
        wrong = {
            "missing": (expected - found).total(),
            "doubled": doubled,
            "unexpected": excess.total() - doubled,
            "open": len(self.transactions("Ongoing")),
        }
        return ", ".join(f"{name}: {count}" for name, count in wrong.items() if count)


def start_together(jobs: Sequence[AnyJob], log: Path, **changed: Any) -> Run:
    """Starts the jobs' queries in one process and one Spark, optionally with some fields of `Config` changed."""
    run = Run([replace(job.config, **changed) for job in jobs], log)
    for job in jobs:
        job.runs.append(run)
    return run


class Job(AnyJob):
    """A job whose output contains each id exactly once, although some are repeated in its input if ``again`` is set."""

    def __init__(self, bootstrap: str, folder: Path, *, rows: int, again: bool = True, **more: Any) -> None:
        super().__init__(bootstrap, folder, **more)
        self.ids = [f"{number:08d}" for number in range(rows)]
        self._again = again

    def __enter__(self) -> Self:
        super().__enter__()
        ids, later = [], len(self.ids) // 4
        for number, each in enumerate(self.ids):
            ids.append(each)
            if self._again and number >= later and number % 5 == 0:
                ids.append(self.ids[number - later])
        if not self.config.files:
            self.send([(each.encode(), None) for each in ids])
            return self
        Path(self.config.files).mkdir()
        rows = self.config.rows_per_batch // 2  # a batch has two files
        for first in range(0, len(ids), rows):
            lines = [json.dumps({"id": each}) for each in ids[first : first + rows]]
            Path(self.config.files, f"{first:08d}.json").write_text("\n".join(lines))
        return self

    def row(self, record: Record) -> Row:
        """Returns the id of a record as a row."""
        return (record.key or b"").decode(), ""

    def judge(self, expected: Counter[Row] | None = None) -> str:
        return super().judge(expected or Counter((each, "") for each in self.ids))


# --- holding and killing ----------------------------------------------------------------------------------------------

WITHIN_TASKS = (BEGIN, WRITTEN, PREPARED)
INSIDE = (*WITHIN_TASKS, HALFWAY)
POINTS = (*IN_DRIVER, *INSIDE)

OneJob = TypeVar("OneJob", bound=AnyJob)

Cell = tuple[str, dict[str, Any]]
"""A point, and the details that an arrival there must report: the sink, batch or slot."""

IsDue = Callable[[int], bool]
"""Returns True if the query should be held in the given batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the systems reported while a job was held.

    Attributes:
        point: The point at which the job should have been held.
        phase: The phase of its driver.
        batch: The batch of its driver.
        decided: The last batch up to which everything was decided.
        open: The transactions of each target that were neither committed nor aborted.
        visible: What a reader of each target found, if it was queried.
        after: What the reader found after the kill.
    """

    point: str
    phase: str
    batch: int
    decided: int
    open: Mapping[str, Sequence[str]]
    visible: Mapping[str, Rows]
    after: Mapping[str, Rows]

    def check(self) -> None:
        """Checks that the query really was at its point, and that no reader saw a batch that was not decided."""
        assert self.phase == self.point or not self.point.isupper()
        if self.point in (*WITHIN_TASKS, "WRITING", "DECIDING"):
            assert self.decided < self.batch, f"decided already: {self}"
        if self.point in ("FINISHING", HALFWAY, BEFORE_CONCLUDE, "SWEEPING_OWN", "RAISING_FLOOR", "TIDYING", "IDLE"):
            assert self.decided == self.batch, f"not decided: {self}"
        if self.point in ("DECIDING", "FINISHING"):
            assert all(self.open.values()), f"nothing was prepared, so the kill proves nothing: {self.open}"
        if self.point in (WRITTEN, PREPARED, HALFWAY):
            assert any(self.open.values()), f"nothing was open, so the kill proves nothing: {self}"
        for kind, rows in self.after.items():
            early = [row for row in rows if row[1] > self.decided]
            assert not early, f"{kind} shows rows of a batch that was not decided at {self.point}: {early[:3]}"
            assert self.visible[kind] <= rows, f"{kind} no longer shows rows that it has shown"


def hold_at(point: str, job: AnyJob, is_due: IsDue | None = None, **told: Any) -> Hold:
    """Holds the query at a point, optionally only in a batch that is due."""

    def when(_: object) -> bool:
        now = job.phase()
        return is_due is None or (now is not None and is_due(now.told["batch"]))

    if point in Phase.__members__:
        return job.gate.hold(PHASE, when=when, phase=point, **told)
    return job.gate.hold(point, when=when, **told)


def hold_cell(cell: Cell, job: AnyJob, is_due: IsDue | None = None) -> Hold:
    """Holds the query in a batch that is due; by default, in one that is not decided yet."""
    (point, told), first = cell, job.decided() + 1
    return hold_at(point, job, None if point in FIRST else is_due or (lambda batch: batch >= first), **told)


def start_held(
    holds: Mapping[OneJob, Hold],
    points: Sequence[str],
    log: Path,
    *,
    cores: int = 2,
    limit_s: float = LIMIT_S,
    **changed: Any,
) -> Run:
    """Starts the jobs in one process, and waits until each of them is held. Fails if a job ends before that.

    Each query that is held within a task has a separate core. The others share ``cores``, since each core is a worker
    that takes time to start.
    """
    master = f"local[{cores + sum(point in WITHIN_TASKS for point in points)}]"
    before = {job: len(job.gate.at(ENDED)) for job in holds}
    run = start_together(list(holds), log, master=master, **changed)
    for job, hold in holds.items():

        def is_settled(job: OneJob = job, hold: Hold = hold) -> bool:
            return bool(hold.arrivals) or len(job.gate.at(ENDED)) > before[job]

        job.gate.wait_for(is_settled, hold.words, run.check, limit_s=limit_s)
        assert hold.arrivals, f"{hold.words} never came: {job.gate.last(REFUSED, ENDED)}"
        hold.cancel()
    return run


def strike(
    cells: Mapping[OneJob, Cell],
    log: Path,
    due: Mapping[OneJob, IsDue] | None = None,
    *,
    read: bool = True,
    **started: Any,
) -> dict[OneJob, Observation]:
    """Starts the jobs in one process, kills it when each is held in a batch that is due, and returns what was seen.

    By default, undecided batches are due. Readers are only queried if ``read`` is set.
    """
    holds = {job: hold_cell(cell, job, (due or {}).get(job)) for job, cell in cells.items()}
    run = start_held(holds, [point for point, _ in cells.values()], log, **started)
    seen = {job: observe(point, job, read=read) for job, (point, _) in cells.items()}
    run.kill()
    return {job: replace(one, after=job.visible() if read else {}) for job, one in seen.items()}


def observe(point: str, job: AnyJob, *, read: bool = True) -> Observation:
    """Queries the systems first, then the log: a batch that is undecided in the log was undecided when it was seen."""
    now = job.phase()
    phase, batch = (now.told["phase"], now.told["batch"]) if now is not None else ("", -1)
    visible, opened = job.visible() if read else {}, job.open()
    return Observation(
        point=point, phase=phase, batch=batch, decided=job.decided(), open=opened, visible=visible, after=visible
    )
