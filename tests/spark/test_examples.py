"""The examples, each as the process that its user starts, killed (SIGKILL, with JVM and workers) and counted.

What must come out is worked out by ``examples/tryout`` from the sources and from what Spark has written down about its
batches. Each example with each of its clocks at every point, which takes half an hour::

    pytest -m slow -s tests/spark/test_examples.py

`test_example_plans` does the same with the plans alone, all in one Spark, in a third of the time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark.desk import Visit
from spark.example_job import EXAMPLES, ExampleJob, Query
from spark.faults import HALFWAY
from spark.kills import POINTS
from sparkonce.protocol.state import Phase
from sparkonce.testing.kafka import read_committed, read_uncommitted
from tryout import EnrichmentSample, EtlSample, SumSample, run
from tryout.trial import Count

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

FAST = ("--checkpoint-every", "0")
QUERIES = (
    Query(
        name="etl, by the record's time",
        script="etl.py",
        sample=lambda: EtlSample(count=6000),
        options=(*FAST, "--lateness", "5 seconds"),
        chunk=200,
    ),
    Query(
        name="etl, by processing time",
        script="etl.py",
        sample=lambda: EtlSample(count=6000, clock="processing", window="2 seconds"),
        options=(*FAST, "--clock", "processing", "--window", "2 seconds", "--lateness", "0 seconds"),
        chunk=100,
    ),
    Query(
        name="windowed sum, by event time",
        script="windowed_sum.py",
        sample=lambda: SumSample(count=9000),
        options=FAST,
        chunk=200,
    ),
    Query(
        name="windowed sum, by processing time",
        script="windowed_sum.py",
        sample=lambda: SumSample(count=9000, clock="processing", window="2 seconds"),
        options=(*FAST, "--clock", "processing", "--window", "2 seconds", "--lateness", "0 seconds"),
        chunk=100,
    ),
    Query(
        name="enrichment",
        script="enrichment.py",
        sample=lambda: EnrichmentSample(count=2500),
        options=FAST,
        chunk=100,
    ),
)
ETL, *OTHERS = QUERIES
"""The ETL by the record's time is the one that is looked at while it is killed."""

UNDECIDED, UNFINISHED, UNRECORDED = Phase.DECIDING.name, Phase.FINISHING.name, Phase.IDLE.name
"""All is prepared and nothing decided; decided and nothing committed; committed, and Spark does not know of it yet."""


@pytest.mark.parametrize(
    "query",
    [pytest.param(query, marks=[pytest.mark.slow] * ("processing" in query.name), id=query.name) for query in OTHERS],
)
def test_killed_in_the_middle(query: Query, tmp_path: Path) -> None:
    with ExampleJob(query, tmp_path) as job:
        for point in (UNDECIDED, UNFINISHED, UNRECORDED):
            job.kill_at(point)
        judge(job, job.finish())


def test_the_etl_shows_a_batch_when_it_is_decided_and_says_so(tmp_path: Path) -> None:
    with ExampleJob(ETL, tmp_path) as job:
        job.kill_at(UNDECIDED, see_nothing)
        job.kill_at(HALFWAY)
        job.kill_at(UNRECORDED, see_the_log)
        judge(job, job.finish())


def test_one_command_tries_an_example_out(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FEED_S", 1.0)
    assert run.try_out(str(EXAMPLES / "windowed_sum.py"), SumSample(count=600), []) == 0
    said = capfd.readouterr()
    assert "\nexactly once" in said.out
    assert "INFO sparkonce batch=" in said.err


def test_a_job_that_ends_by_itself_has_not_passed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run.try_out(str(EXAMPLES / "windowed_sum.py"), SumSample(count=600), ["--clock", "sundial"]) == 1
    said = capfd.readouterr()
    assert "NOT exactly once" in said.out
    assert "sundial" in said.err


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_every_example_at_every_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts: list[Count] = []
    for number, query in enumerate(QUERIES):
        with ExampleJob(query, tmp_path / str(number), keep_batches=3) as job:
            for point in POINTS:
                job.kill_at(point)
            counts.append(job.finish())
            judge(job, counts[-1])
    with capsys.disabled():
        print("\n" + table(QUERIES, POINTS, counts))  # noqa: T201 - the table is what it is for


def see_nothing(job: ExampleJob, _: Visit) -> None:
    """All of the batch stands in the topic, and a reader sees none of it."""
    target = job.trial.sample.target
    opened = job.transactions("Ongoing")
    assert len(opened) == 5
    assert {one.timeout_ms for one in opened.values()} == {600_000}
    assert len(read_uncommitted(job.bootstrap, target)) > 0 == len(read_committed(job.bootstrap, target))


def see_the_log(job: ExampleJob, at: Visit) -> None:
    """The example's own output names the batch, and each transaction as the broker knows it."""
    batch = at.told["batch"]
    lines = re.findall(
        rf"batch={batch} sink=kafka slot=(\d+) committed rows=\d+ "
        r"epoch=(\d+) producer_id=(\d+) transactional_id=(\S+): ok",
        job.runs[-1].log.read_text(),
    )
    assert len(lines) == len(job.handles()) > 0
    known = job.transactions("PrepareCommit", "CompleteCommit")  # the coordinator may still write its markers
    for slot, epoch, producer_id, transactional_id in lines:
        assert transactional_id.startswith("identify-etl."), slot
        assert known[transactional_id].producer_id == int(producer_id)
        assert known[transactional_id].producer_epoch == int(epoch)


def judge(job: ExampleJob, count: Count) -> None:
    assert count.is_done
    assert job.too_early() == 0
    assert job.left_open() == []


def table(queries: Sequence[Query], points: Sequence[str], counts: Sequence[Count]) -> str:
    """Each example with the points at which it was killed, and what came out."""
    width = max(len(query.name) for query in queries)
    lines = [f"killed at each of: {', '.join(points)}"]
    lines.append(f"{'':<{width}}  kills    rows  missing  doubled  strange")
    for query, count in zip(queries, counts, strict=True):
        lines.append(
            f"{query.name:<{width}}  {len(points):>5}  {count.seen:>6,}  {count.missing:>7}  {count.doubled:>7}  "
            f"{count.strange:>7}"
        )
    return "\n".join(lines)
