"""Several queries at once, killed by one SIGKILL after the other, each while all of them are held at the same point.

The queries run in one process and one Spark, each with its own sources, checkpoint and target. So one start of Spark,
which is what takes the time, strikes all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from eventually import LIMIT_S
from spark.harness import PARTITIONS, AnyJob, Message, Row, Verdict, start_together
from spark.kills import INSIDE, Cell, IsDue, Sight, check_points, leaves_decided, strike
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.checkpoint.spark import SparkCheckpoint
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka.jars import spark_avro_jars, spark_kafka_jars

ROWS_PER_BATCH = 1_000
LARGER = 4
"""How many times as large batches are where nothing is killed in them."""
WARM = 3
"""Batches before the first kill: no window closes in the first ones."""

STATE_FILES = frozenset({".delta", ".zip", ".changelog"})

Batch = Sequence[Sequence[Message]]
"""Of each source, the rows of one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A query, its input, and what must come of it.

    Attributes:
        name: What it is called.
        plan: ``module:function`` of a function of the session and a `spark.pipeline.Config`, which gives the rows.
        sent: What each source gets.
        closing: What each source gets at the end, once.
        expected: The output's rows, key and value with how often each must come, of a job that has read its input.
        output_mode: Spark's.
        sql: More of Spark's SQL settings.
        no_data: Whether Spark also runs batches without data, which close windows or let timers fire, and the kills
            fall into these. Its input then comes in pieces, one more before each start.
        state_files: Endings, out of `STATE_FILES`, of the files that its state store must have written; none if they
            are not looked at.
        undisturbed: How large the batches are of a run of the same query on the same input that nobody disturbs, which
            must give the same: so many times as large as those of the runs that are killed. 1 if what it gives follows
            from the batches, 0 for no such run, where it follows from the time.
    """

    name: str
    plan: str
    sent: Sequence[Sequence[Message]]
    closing: Sequence[Sequence[Message]] = ()
    expected: Callable[[StateJob], Counter[Row]]
    output_mode: str = "append"
    sql: dict[str, str] = field(default_factory=dict)
    no_data: bool = False
    state_files: frozenset[str] = frozenset()
    undisturbed: int = LARGER


class StateJob(AnyJob):
    """An example's job.

    Args:
        bootstrap: The broker.
        folder: A new one.
        example: The example.
        points: At which it is to be killed.
        rows_per_batch: Of each source.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        example: Example,
        points: Sequence[str] = (),
        rows_per_batch: int = ROWS_PER_BATCH,
    ) -> None:
        no_data = str(example.no_data).lower()
        super().__init__(
            bootstrap,
            folder,
            sources=len(example.sent),
            plan=example.plan,
            output_mode=example.output_mode,
            slots=2,
            rows_per_batch=rows_per_batch,
            keep_batches=3,
            tidy_every_batches=1,
            points=INSIDE,
            jars=tuple(str(jar) for jar in [*spark_kafka_jars(), *spark_avro_jars()]),
            sql={"spark.sql.streaming.noDataMicroBatches.enabled": no_data, **example.sql},
        )
        self.example = example
        self.points = points
        self.kills: list[Sight] = []
        self._pieces = 0

    def feed(self) -> None:
        """Sends what the next start is to find: a batch more, or everything if batches without data do not matter."""
        first = self._pieces
        self._pieces = max(first, WARM) + 1 if self.example.no_data else max(map(len, self.example.sent))
        self._send_pieces(first)

    def feed_all(self) -> None:
        """Sends the rest, and what closes the last windows."""
        first, self._pieces = self._pieces, max(map(len, self.example.sent))
        self._send_pieces(first)
        for source, messages in enumerate(self.example.closing):
            self.send(messages, source)

    def _send_pieces(self, first: int) -> None:
        for source, messages in enumerate(self.example.sent):
            self.send(messages[first * ROWS_PER_BATCH : self._pieces * ROWS_PER_BATCH], source)

    def is_due(self) -> IsDue:
        """Makes batches due that are not their run's first, so that the state goes on between two kills."""
        first = max(self.decided() + 2, WARM)
        return lambda batch: batch >= first and (not self.example.no_data or self.is_without_data(batch))

    def is_without_data(self, batch: int) -> bool:
        kept = SparkCheckpoint(LocalFiles(self.checkpoint))
        return batch > 0 and kept.input_offsets(batch) == kept.input_offsets(batch - 1)

    def batches(self) -> list[Batch]:
        """The rows of each batch, as Spark's own offset log has divided them."""
        both = zip_longest(self.example.sent, self.example.closing, fillvalue=())
        every = [[*sent, *closing] for sent, closing in both]
        ends = [dict.fromkeys(range(PARTITIONS), 0) for _ in every]
        found: list[Batch] = []
        while (offsets := SparkCheckpoint(LocalFiles(self.checkpoint)).input_offsets(len(found))) is not None:
            batch = []
            for source, text in enumerate(offsets):
                now = {int(key): end for key, end in json.loads(text)[self.config.sources[source]].items()}
                batch.append(
                    [
                        every[source][number * PARTITIONS + partition]
                        for partition, end in now.items()
                        for number in range(ends[source][partition], end)
                    ]
                )
                ends[source] = now
            found.append(batch)
        assert [sum(end.values()) for end in ends] == [len(messages) for messages in every], "not all has been read"
        return found

    def output(self) -> Counter[Row]:
        return Counter(map(self.row, self.records()))

    def state_files(self) -> frozenset[str]:
        """Finds the endings by which one sees which state store it was that wrote."""
        return STATE_FILES & {path.suffix for path in (self.checkpoint / "state").rglob("*.*")}

    def note(self, kill: Sight) -> None:
        """Keeps what was seen at a kill, and does to the disk what the kill alone does not."""
        assert not self.example.no_data or kill.batch == 0 or self.is_without_data(kill.batch), kill
        self.kills.append(kill)
        if kill.point == Phase.FINISHING.name:
            self._lose_newest_state()

    def _lose_newest_state(self) -> None:
        """Takes away the state that the last batch has left, as a power cut may do: Spark does not fsync it.

        The decision log is fsynced. So of a batch that is decided the state may be gone.
        """
        version = str(self.kills[-1].batch + 1)
        endings = STATE_FILES | {".snapshot"}
        newest = [path for ending in endings for path in (self.checkpoint / "state").rglob(f"{version}{ending}")]
        assert newest, f"{self.example.name} has no state {version} to lose"
        for path in newest:
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an example.

    Attributes:
        job: Its job, which was killed.
        verdict: On its output.
        differing: In how many rows this differs from that of a run of the same query on the same input that nobody
            disturbed.
        state_files: What the state stores have written, its own and the other run's.
    """

    job: StateJob
    verdict: Verdict
    differing: int
    state_files: tuple[frozenset[str], ...]

    def __str__(self) -> str:
        struck = Counter(kill.point for kill in self.job.kills)
        differing = f"{self.differing} rows differ from an undisturbed run"
        return f"{self.job.example.name}: {dict(struck)}; {self.verdict}; {differing}"

    def check(self, points: Sequence[str]) -> None:
        """Raises unless it came out right, and was killed at each of these points."""
        assert self.verdict.is_exactly_once, str(self)
        assert self.differing == 0, str(self)
        if wanted := self.job.example.state_files:
            assert set(self.state_files) == {wanted}, f"{self}: another state store"
        check_points(self.job.kills, points)


def carry_out(
    bootstrap: str, folder: Path, examples: Sequence[tuple[Example, Sequence[str]]], say: Callable[[str], object]
) -> list[Outcome]:
    """Kills each example at one of its points after the other, lets them end beside runs that nobody disturbs, and
    judges."""
    with ExitStack() as stack:
        jobs = [stack.enter_context(StateJob(bootstrap, folder / each.name, each, points)) for each, points in examples]
        for number in range(max(len(points) for _, points in examples)):
            due = [job for job in jobs if number < len(job.points)]
            kill(number, due, folder / f"{number}.log")
            say(f"kill {number + 1}: " + ", ".join(f"{job.example.name} in {job.kills[-1]}" for job in due))
        twins = {}
        for each, _ in examples:
            if each.undisturbed:
                rows = each.undisturbed * ROWS_PER_BATCH
                twin = StateJob(bootstrap, folder / f"{each.name}-undisturbed", each, rows_per_batch=rows)
                twins[each.name] = stack.enter_context(twin)
        for job in jobs:
            job.config = replace(job.config, rows_per_batch=(job.example.undisturbed or 1) * ROWS_PER_BATCH)
        for job in (*jobs, *twins.values()):
            job.feed_all()
        run = start_together([*jobs, *twins.values()], folder / "last.log", master="local[2]")
        run.finish(limit_s=3 * LIMIT_S)
        outcomes = [outcome(job, twins.get(job.example.name)) for job in jobs]
    for result in outcomes:
        say(str(result))
    return outcomes


def kill(number: int, jobs: Sequence[StateJob], log: Path) -> None:
    """Starts the queries, and kills them when each is at that one of its points."""
    points = {job: job.points[number] for job in jobs}
    for job, point in points.items():
        assert point != Phase.REPLAYING.name or leaves_decided(job.kills), "there is nothing to replay"
        job.feed()
    cells: dict[StateJob, Cell] = {job: (point, {}) for job, point in points.items()}
    due = {job: job.is_due() for job in jobs}
    for job, sight in strike(cells, log, due, read=False, cores=1, limit_s=3 * LIMIT_S).items():
        job.note(sight)


def outcome(job: StateJob, twin: StateJob | None) -> Outcome:
    killed = job.output()
    whole = killed if twin is None else twin.output()
    return Outcome(
        job=job,
        verdict=job.count(job.example.expected(job)),
        differing=((killed - whole) + (whole - killed)).total(),
        state_files=tuple(each.state_files() for each in (job, twin) if each is not None),
    )
