"""Several queries at once, killed by one SIGKILL after the other, each while all of them are at the same point.

The queries run in one process and one Spark, each with its own sources, checkpoint, target, and desk. So one start of
Spark, which is what takes the time, kills all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from spark.desk import Hold
from spark.harness import PARTITIONS, AnyJob, Message, Row, Verdict, start_together
from spark.kills import FIRST, INSIDE, WITHIN_TASKS, Kill, check_points, hold_at, kill_now, leaves_decided
from spark.pipeline import ENDED, REFUSED
from spark.processes import LIMIT_S, Run
from sparkonce.protocol.state import Phase
from sparkonce.spark.checkpoint import input_offsets

ROWS_PER_BATCH = 1_000
WARM = 3
"""Batches before the first kill: no window closes in the first ones."""

STATE_FILES = frozenset({".delta", ".zip", ".changelog"})

Batch = Sequence[Sequence[Message]]
"""Of each source, the rows of one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A query, its input, and what must come of it.

    Attributes:
        name: What tables call it.
        plan: ``module:function`` of a function of the session and a `spark.pipeline.Config`, which gives the rows.
        sent: What each source gets.
        closing: What each source gets at the end, once.
        expected: The output's rows, key and value with how often each must come, of the batches of the input.
        output_mode: Spark's.
        sql: More of Spark's SQL settings.
        no_data: Whether Spark also runs batches without data, which close windows or let timers fire, and the kills
            fall into these. Its input then comes in pieces, one more before each start.
        state_files: Endings, out of `STATE_FILES`, of the files that its state store must have written.
    """

    name: str
    plan: str
    sent: Sequence[Sequence[Message]]
    closing: Sequence[Sequence[Message]] = ()
    expected: Callable[[Sequence[Batch]], Counter[Row]]
    output_mode: str = "append"
    sql: dict[str, str] = field(default_factory=dict)
    no_data: bool = False
    state_files: frozenset[str] = frozenset()


class ExampleJob(AnyJob):
    """One life of an example.

    Args:
        bootstrap: The broker.
        folder: A new one.
        example: The example.
    """

    def __init__(self, bootstrap: str, folder: Path, example: Example) -> None:
        no_data = str(example.no_data).lower()
        super().__init__(
            bootstrap,
            folder,
            sources=len(example.sent),
            plan=example.plan,
            output_mode=example.output_mode,
            slots=2,
            rows_per_batch=ROWS_PER_BATCH,
            keep_batches=3,
            tidy_every_batches=1,
            points=INSIDE,
            sql={"spark.sql.streaming.noDataMicroBatches.enabled": no_data, **example.sql},
        )
        self.example = example
        self.kills: list[Kill] = []
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

    def is_without_data(self, batch: int) -> bool:
        return batch > 0 and input_offsets(self.checkpoint, batch) == input_offsets(self.checkpoint, batch - 1)

    def batches(self) -> list[list[list[Message]]]:
        """The rows of each batch, as Spark's own offset log has divided them."""
        both = zip_longest(self.example.sent, self.example.closing, fillvalue=())
        every = [[*sent, *closing] for sent, closing in both]
        ends = [dict.fromkeys(range(PARTITIONS), 0) for _ in every]
        found = []
        while (offsets := input_offsets(self.checkpoint, len(found))) is not None:
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

    def judge(self) -> Verdict:
        return self.count(self.example.expected(self.batches()))

    def state_files(self) -> frozenset[str]:
        """By which endings one sees which state store it was that wrote."""
        return STATE_FILES & {path.suffix for path in (self.checkpoint / "state").rglob("*.*")}

    def lose_newest_state(self) -> None:
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
        example: The example.
        kills: In order.
        verdict: On its output.
        differing: In how many rows this differs from that of a run of the same query on the same input that nobody
            disturbed.
        state_files: What its state store has written, and the other run's.
    """

    example: Example
    kills: tuple[Kill, ...]
    verdict: Verdict
    differing: int
    state_files: tuple[frozenset[str], frozenset[str]]


def carry_out(
    bootstrap: str,
    folder: Path,
    examples: Sequence[Example],
    points: Sequence[str],
    say: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """Kills all examples at one point after the other, lets them end, and judges them."""
    with ExitStack() as stack:

        def new_job(example: Example, name: str) -> ExampleJob:
            return stack.enter_context(ExampleJob(bootstrap, folder / name, example))

        jobs = [new_job(example, example.name) for example in examples]
        for number, point in enumerate(points):
            strike(point, jobs, folder / f"{number}.log")
            if point == Phase.FINISHING.name:
                for job in jobs:
                    job.lose_newest_state()
            say(f"kill {number + 1}: {point}, in batches {[job.kills[-1].batch for job in jobs]}")
        undisturbed = [new_job(example, f"{example.name}-undisturbed") for example in examples]
        both = [job for pair in zip(jobs, undisturbed, strict=True) for job in pair]
        for job in both:
            job.feed_all()
        start(both, folder / "last.log").finish(limit_s=3 * LIMIT_S)
        return [outcome(job, other) for job, other in zip(jobs, undisturbed, strict=True)]


def outcome(job: ExampleJob, undisturbed: ExampleJob) -> Outcome:
    killed, whole = (Counter(map(each.row, each.records())) for each in (job, undisturbed))
    return Outcome(
        example=job.example,
        kills=tuple(job.kills),
        verdict=job.judge(),
        differing=((killed - whole) + (whole - killed)).total(),
        state_files=(job.state_files(), undisturbed.state_files()),
    )


def start(jobs: Sequence[ExampleJob], log: Path, point: str = "") -> Run:
    # A query that is held within a task occupies a core. More cores than needed are more workers, which take time.
    cores = 1 + len(jobs) if point in WITHIN_TASKS else 2
    return start_together(jobs, log, master=f"local[{cores}]")


def strike(point: str, jobs: Sequence[ExampleJob], log: Path) -> None:
    """Starts the queries, and kills them when all of them are at a point."""
    decided = [job.decided() for job in jobs]
    before = [len(job.desk.visits) for job in jobs]
    for job in jobs:
        assert point != Phase.REPLAYING.name or leaves_decided(job.kills), "there is nothing to replay"
        job.feed()
    holds = [hold_at(point, job, due(point, job)) for job in jobs]
    run = start(jobs, log, point)
    for hold, job, visits in zip(holds, jobs, before, strict=True):
        wait_for(hold, job, visits, run)
    for job, visits, last in zip(jobs, before, decided, strict=True):
        kill = kill_now(point, job, visits, last)
        assert not job.example.no_data or kill.batch == 0 or job.is_without_data(kill.batch), kill
        job.kills.append(kill)
    run.kill()


def due(point: str, job: ExampleJob) -> Callable[[int], bool] | None:
    """Whether a batch is one to be killed in: not the first of its run, so that the state goes on between two kills."""
    if point in FIRST:
        return None
    first = max(job.decided() + 2, WARM)
    return lambda batch: batch >= first and (not job.example.no_data or job.is_without_data(batch))


def wait_for(hold: Hold, job: ExampleJob, visits: int, run: Run) -> None:
    """Waits until a query is held; raises if it ends instead."""

    def ended() -> str:
        last = next((one for one in job.desk.visits[visits:] if one.point in {REFUSED, ENDED}), None)
        return f"{job.example.name} ended without coming to {hold.words}: {last.told}" if last is not None else ""

    job.desk.wait_for(lambda: bool(hold.caught) or bool(ended()), hold.words, run.check)
    assert hold.caught, ended()
    hold.give_up()


def check(outcomes: Iterable[Outcome], points: Sequence[str]) -> None:
    """Raises unless every example came out right, and was killed at each of these points."""
    for each in outcomes:
        assert each.verdict.is_exactly_once, f"{each.example.name}: {each.verdict}"
        assert each.differing == 0, f"{each.example.name}: {each.differing} rows are not those of an undisturbed run"
        assert set(each.state_files) == {each.example.state_files}, f"{each.example.name}: another state store"
        check_points(each.kills, points)


def table(outcomes: Sequence[Outcome], points: Sequence[str]) -> str:
    """Examples by points: kills; and what came of each example, counted on the server."""
    width = max(len(each.example.name) for each in outcomes)
    lines = [f"{number:>2}  {point}" for number, point in enumerate(points, 1)]
    numbers = " ".join(f"{number:>2}" for number, _ in enumerate(points, 1))
    lines.append(f"{'':<{width}}  {numbers}    rows  missing  doubled  strange  differing")
    for each in outcomes:
        kills = Counter(kill.point for kill in each.kills)
        cells = " ".join(f"{kills[point]:>2}" for point in points)
        told = each.verdict
        counts = f"{told.rows:>6,}  {told.missing:>7}  {told.doubled:>7}  {told.strange:>7}  {each.differing:>9}"
        lines.append(f"{each.example.name:<{width}}  {cells}  {counts}")
    return "\n".join(lines)
