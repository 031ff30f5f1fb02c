"""The examples' programs, each as the process that its user starts; the ETL is killed (SIGKILL, with JVM and workers).

What must come out is worked out by ``examples/tryout`` from the sources and from what Spark has written down about its
batches. `test_state` kills the plans of all examples. Each program with each of its clocks at every point, which takes
half an hour::

    pytest -m slow -s tests/spark/test_examples.py
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from spark.example_job import EXAMPLES, Program, ProgramJob, delete_topics
from spark.kills import POINTS
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from sparkonce.testing.kafka import read_committed, read_uncommitted
from sparkonce.testing.registry import RegistryServer
from striking.gate import Arrival
from tryout import EnrichmentSample, EtlSample, SumSample, run
from tryout.sample import Sample
from tryout.trial import Count

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

FAST = ("--checkpoint-every", "0")
PROCESSING = (*FAST, "--clock", "processing", "--window", "2 seconds", "--lateness", "0 seconds")
PROGRAMS = (
    Program(
        name="etl, by the record's time",
        script="etl.py",
        sample=lambda: EtlSample(count=2500),
        options=(*FAST, "--lateness", "5 seconds"),
        chunk=200,
    ),
    Program(
        name="etl, by processing time",
        script="etl.py",
        sample=lambda: EtlSample(count=6000, clock="processing", window="2 seconds"),
        options=PROCESSING,
        chunk=100,
    ),
    Program(
        name="windowed sum, by event time",
        script="windowed_sum.py",
        sample=lambda: SumSample(count=9000),
        options=FAST,
        chunk=200,
    ),
    Program(
        name="windowed sum, by processing time",
        script="windowed_sum.py",
        sample=lambda: SumSample(count=9000, clock="processing", window="2 seconds"),
        options=PROCESSING,
        chunk=100,
    ),
    Program(
        name="enrichment",
        script="enrichment.py",
        sample=lambda: EnrichmentSample(count=2500),
        options=FAST,
        chunk=50,
    ),
)
ETL = PROGRAMS[0]

UNDECIDED = Phase.DECIDING.name
"""All is prepared and nothing decided."""


@pytest.fixture
def registry() -> Iterator[str]:
    with RegistryServer() as server:
        yield server.url


@pytest.mark.slow
def test_the_etl_shows_a_batch_when_it_is_decided_and_says_so(kafka: Cluster, tmp_path: Path, registry: str) -> None:
    with ProgramJob(kafka.bootstrap, tmp_path, ETL, registry) as job:
        job.kill_at(UNDECIDED, see_nothing)
        judge(job, job.finish())
        see_the_log(job)


@pytest.mark.parametrize(
    ("script", "sample"),
    [
        pytest.param("windowed_sum.py", SumSample(count=600), marks=pytest.mark.slow),
        pytest.param("enrichment.py", EnrichmentSample(count=200), marks=pytest.mark.slow),
    ],
)
def test_one_command_tries_an_example_out(
    kafka: Cluster, script: str, sample: Sample, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "FEED_S", 1.0)
    monkeypatch.setattr(run, "Cluster", lambda: nullcontext(kafka))
    assert run.try_out(str(EXAMPLES / script), sample, []) == 0
    said = capfd.readouterr()
    assert "\nexactly once" in said.out
    assert "INFO sparkonce batch=" in said.err
    delete_topics(kafka.bootstrap, [*sample.sources, sample.target])


def test_a_job_that_ends_by_itself_has_not_passed(
    kafka: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "Cluster", lambda: nullcontext(kafka))
    assert run.try_out(str(EXAMPLES / "windowed_sum.py"), SumSample(count=600), ["--clock", "sundial"]) == 1
    said = capfd.readouterr()
    assert "NOT exactly once" in said.out
    assert "sundial" in said.err
    delete_topics(kafka.bootstrap, [*SumSample.sources, SumSample.target])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_program_at_every_point(
    program: Program, kafka: Cluster, tmp_path: Path, registry: str, say: Callable[[str], None]
) -> None:
    with ProgramJob(kafka.bootstrap, tmp_path, program, registry, keep_batches=3) as job:
        for point in POINTS:
            job.kill_at(point)
        count = job.finish()
        say(f"{program.name}, killed at each of {', '.join(POINTS)}: {count}")
        judge(job, count)


def see_nothing(job: ProgramJob, _: Arrival) -> None:
    """All of the batch stands in the topic, and a reader sees none of it."""
    target = job.trial.sample.target
    opened = job.transactions("Ongoing")
    assert len(opened) == 5
    assert {one.timeout_ms for one in opened.values()} == {600_000}
    assert len(read_uncommitted(job.bootstrap, target)) > 0 == len(read_committed(job.bootstrap, target))


def see_the_log(job: ProgramJob) -> None:
    """The example's own output names the batch, and each transaction as the broker knows it."""
    batch, handles = job.last_rows()
    lines = re.findall(
        rf"batch={batch} sink=kafka slot=(\d+) committed rows=\d+ "
        r"epoch=(\d+) producer_id=(\d+) transactional_id=(\S+): ok",
        job.runs[-1].log.read_text(),
    )
    assert len(lines) == len(handles) > 0
    known = job.transactions("PrepareCommit", "CompleteCommit")  # the coordinator may still write its markers
    for slot, epoch, producer_id, transactional_id in lines:
        assert transactional_id.startswith("identify-etl."), slot
        assert known[transactional_id].producer_id == int(producer_id)
        assert known[transactional_id].producer_epoch == int(epoch)


def judge(job: ProgramJob, count: Count) -> None:
    assert count.is_done, count
    assert job.left_open() == []
