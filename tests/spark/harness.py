"""Starts the query of `spark.pipeline`, kills it with all that belongs to it, and judges what came of it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spark.desk import Desk, Visit
from spark.pipeline import ENDED, PHASE, REFUSED, Config
from spark.startup import jvm_flags
from spark.watching import Watcher
from sparkonce.embedded.jars import spark_kafka_jars
from sparkonce.embedded.process import last_lines
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol.ownership import TransactionalId, short_query
from sparkonce.protocol.view import LogView
from sparkonce.testing.kafka import Transaction, create_topic, list_transactions, produce, read_committed

TESTS = Path(__file__).parent.parent
LIMIT_S = 240.0
PARTITIONS = 4
_POLL_S = 0.02

# They would make another Spark, or another way of starting it, than the one that the jars are for.
_UNWANTED = ("SPARK_HOME", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON")


def eventually(holds: Callable[[], Any], what: str, *, limit_s: float = LIMIT_S) -> Any:
    """The first answer that is true."""
    give_up_at = time.monotonic() + limit_s
    while not (answer := holds()):
        assert time.monotonic() < give_up_at, f"not after {limit_s:.0f} s: {what}"
        time.sleep(_POLL_S)
    return answer


def new_name(start: str) -> str:
    return f"{start}-{secrets.token_hex(4)}"


class Run:
    """One start of the query, in a session of its own: the Python driver, its JVM, PySpark's daemon, its workers."""

    def __init__(self, config: Config, log: Path) -> None:
        self.config = config
        self.log = log
        environment = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
        own = {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": config.temporary,
            "TMPDIR": config.temporary,
        }
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "spark.pipeline", config.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**environment, **own},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises, with the end of its log, if it has ended."""
        code = self._process.poll()
        assert code is None, f"the query ended with {code}:\n{last_lines(self.log, 40)}"

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self, *, spare: Iterable[int] = ()) -> None:
        """Ends driver and JVM at once (SIGKILL), then the workers, and waits until all are gone.

        Args:
            spare: Workers that survive: orphans that write on behind everybody's back.
        """
        spared = frozenset(spare)
        # The daemon would take its workers along when the JVM is gone: it goes first.
        first = self.daemons() if spared else []
        for pid in [*first, *self.jvms(), self.pid]:
            kill(pid)
        self._process.wait()

        def others_are_gone() -> bool:
            left = [pid for pid in members(self.pid) if pid not in spared]
            for pid in left:
                kill(pid)
            return not left

        eventually(others_are_gone, f"the processes of session {self.pid} are gone")

    def pause(self) -> None:
        """Stops the clock of driver, JVM, and workers."""
        for pid in [self.pid, *members(self.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in [*members(self.pid), self.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def wait(self, *, limit_s: float = LIMIT_S) -> int:
        """Its exit code, when it has ended by itself, with all that belongs to it."""
        code = self._process.wait(limit_s)
        eventually(lambda: not members(self.pid), f"the processes of session {self.pid} are gone")
        return code

    def finish(self, *, limit_s: float = LIMIT_S) -> None:
        """Waits until it has written all of its source and ended."""
        code = self.wait(limit_s=limit_s)
        assert code == 0, f"the query ended with {code}:\n{last_lines(self.log, 40)}"

    def jvms(self) -> list[int]:
        return [pid for pid in members(self.pid) if "java" in _command(pid)[0]]

    def daemons(self) -> list[int]:
        """PySpark's daemon: the Python process whose parent is the JVM."""
        jvms = set(self.jvms())
        return [pid for pid in members(self.pid) if _stat(pid)[1] in jvms and "daemon" in " ".join(_command(pid))]

    def workers(self) -> list[int]:
        daemons = set(self.daemons())
        return [pid for pid in members(self.pid) if _stat(pid)[1] in daemons]


def kill_executor(worker: int) -> None:
    """Ends the executor of a Python worker, and the daemon that would take the worker along, but not the worker."""
    daemon = _stat(worker)[1]
    jvm = _stat(daemon)[1]
    assert any("CoarseGrainedExecutorBackend" in word for word in _command(jvm)), _command(jvm)
    kill(daemon)
    kill(jvm)


def descendants(pid: int) -> list[int]:
    """The living processes that a process has started, and those that they have started."""
    parents = {int(entry.name): _stat(int(entry.name))[1] for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found = [pid]
    for parent in found:
        found += [child for child, of in parents.items() if of == parent]
    return found[1:]


def members(session: int) -> list[int]:
    """The living processes of a session, with their parents."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            state, _, of = _stat(int(entry.name))
            if of == session and state not in "ZX":
                found.append(int(entry.name))
    return found


def _stat(pid: int) -> tuple[str, int, int]:
    """State, parent and session. After the name, which stands in brackets: state, parent, group, session."""
    with suppress(OSError, ValueError, IndexError):
        state, parent, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
        return state, int(parent), int(session)
    return "X", -1, -1


def _command(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return [""]


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a job wrote, against what it had to. Everything is counted on the server."""

    expected: int
    rows: int
    missing: int
    doubled: int
    strange: int
    uncommitted_seen: int
    watched: int
    left_open: int

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows of {self.expected:,}: {self.missing} missing, {self.doubled} doubled, {self.strange} "
            f"that nobody sent; the reader saw {self.watched:,}, {self.uncommitted_seen} of them not committed; "
            f"{self.left_open} transactions left open"
        )

    @property
    def is_exactly_once(self) -> bool:
        return (
            self.rows == self.watched == self.expected > 0
            and self.missing == self.doubled == self.strange == self.uncommitted_seen == self.left_open == 0
        )


def sent(ids: Sequence[str]) -> Iterator[str]:
    """The ids, every fifth of them once more when a quarter of all has gone by."""
    later = len(ids) // 4
    for number, each in enumerate(ids):
        yield each
        if number >= later and number % 5 == 0:
            yield ids[number - later]


class Job:
    """A source with rows, a target, a checkpoint, and everything that runs on them. Use as a context manager.

    Args:
        bootstrap: The broker.
        folder: A new one.
        rows: How many different ids to send.
        again: Whether ids come again, see `sent`.
        config: More of `Config`.
    """

    def __init__(self, bootstrap: str, folder: Path, *, rows: int, again: bool = True, **config: Any) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.desk = Desk()
        self.ids = [f"{number:08d}" for number in range(rows)]
        self._again = again
        self.runs: list[Run] = []
        temporary = folder / "temporary"
        temporary.mkdir(parents=True)
        self.config = Config(
            **{
                "bootstrap": bootstrap,
                "source": new_name("source"),
                "target": new_name("target"),
                "checkpoint": str(folder / "checkpoint"),
                "temporary": str(temporary),
                "jars": tuple(str(jar) for jar in spark_kafka_jars()),
                "jvm_flags": jvm_flags(),
                "desk": self.desk.address,
                **config,
            }
        )
        self.watcher = Watcher(bootstrap, self.config.target, PARTITIONS, self.decided)

    def __enter__(self) -> Job:
        for topic in (self.config.source, self.config.target):
            create_topic(self.bootstrap, topic, PARTITIONS)
        self.send(sent(self.ids) if self._again else self.ids)
        self.desk.__enter__()
        self.watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.runs:
            run.resume()
            run.kill()
        self.watcher.stop()
        self.desk.__exit__()

    def send(self, ids: Iterable[str]) -> None:
        produce(
            self.bootstrap,
            self.config.source,
            ({"key": each.encode(), "partition": number % PARTITIONS} for number, each in enumerate(ids)),
            timeout_s=LIMIT_S,
        )

    @property
    def checkpoint(self) -> Path:
        return Path(self.config.checkpoint)

    def start(self, **changed: Any) -> Run:
        """Starts the query on its checkpoint."""
        run = Run(replace(self.config, **changed), self.folder / f"run-{len(self.runs)}.log")
        self.runs.append(run)
        return run

    def log(self) -> LogView:
        return DecisionLog(LocalLogStore(self.checkpoint)).read(LogView())

    def decided(self) -> int:
        """The last batch that the log has decided now, or -1. Batches are decided in order and without gaps."""
        newest = self.log().newest_decision if (self.checkpoint / "sparkonce").is_dir() else None
        return newest.batch if newest is not None else -1

    def transactions(self, *states: str) -> dict[str, Transaction]:
        """The query's own transactions on the server, in one of these states, or in any."""
        query = self.query
        found = list_transactions(self.bootstrap, states=states)
        return {
            name: one
            for name, one in found.items()
            if (parsed := TransactionalId.parse(name)) is not None and parsed.query == query
        }

    @property
    def query(self) -> str:
        """The short form of its id."""
        return short_query(str(json.loads((self.checkpoint / "metadata").read_text())["id"]))

    def refusal(self) -> Visit | None:
        """The newest error of ours that stopped a batch."""
        return self.desk.last(REFUSED)

    def phase(self) -> Visit | None:
        """Where the newest run stood last."""
        return self.desk.last(PHASE)

    def ended(self) -> Visit | None:
        return self.desk.last(ENDED)

    def judge(self, *, expected: Iterable[str] | None = None) -> Verdict:
        """Counts on the server, once the watcher has caught up with it."""
        wanted = set(self.ids if expected is None else expected)
        records = read_committed(self.bootstrap, self.config.target, timeout_s=LIMIT_S)
        standing = {(record.partition, record.offset): record.key for record in records}
        counts: Counter[str] = Counter((record.key or b"").decode() for record in records)
        self.watcher.catch_up(standing)
        ending = ("PrepareCommit", "PrepareAbort")  # asked for and decided; the coordinator still writes its markers
        eventually(lambda: not self.transactions(*ending), "every transaction that was to end has ended")
        return Verdict(
            expected=len(wanted),
            rows=len(records),
            missing=len(wanted - counts.keys()),
            doubled=sum(count - 1 for count in counts.values()),
            strange=len(counts.keys() - wanted),
            uncommitted_seen=self.watcher.too_early + self.watcher.not_among(standing),
            watched=len(self.watcher.seen),
            left_open=len(self.transactions("Ongoing")),
        )

    def values(self) -> Mapping[str, list[str]]:
        """What a read_committed reader finds, by key."""
        found: dict[str, list[str]] = {}
        for record in read_committed(self.bootstrap, self.config.target, timeout_s=LIMIT_S):
            found.setdefault((record.key or b"").decode(), []).append((record.value or b"").decode())
        return found
