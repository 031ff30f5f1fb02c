"""Runs each example program as users do, in its own process. The ETL example is killed (SIGKILL, with JVM and workers).

``examples/tryout`` computes the expected output from the sources and from the batches that Spark has recorded. To run
each program with each of its clocks at every point, which takes half an hour::

    pytest -m slow -s tests/spark/test_examples.py
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Self

from eventually import LIMIT_S, eventually
from spark.harness import AnyJob
from spark.kills import POINTS, hold_at
from spark.processes import Run
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import TransactionalId
from sparkonce.protocol.state import Phase
from sparkonce_lab.kafka import read_committed, read_uncommitted
from sparkonce_lab.registry import RegistryServer
from sparkonce_lab.rig.kafka import Cluster
from tryout import EnrichmentSample, EtlSample, SumSample, run
from tryout.sample import Sample
from tryout.trial import Count, Trial

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

EXAMPLES = Path(__file__).parents[2] / "examples"

WITH_TRANSACTIONS = (Phase.FINISHING, Phase.SWEEPING_OWN, Phase.RAISING_FLOOR, Phase.TIDYING, Phase.IDLE)
"""The phases of a batch that is already decided."""

LAST_BATCHES = 5
"""The minimum number of batches that the last run makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One way to run an example.

    Attributes:
        name: The name of this program in the tests.
        script: The file of the example.
        sample: Makes its input.
        options: The options of the example.
        chunk: How many records it reads in a batch.
    """

    name: str
    script: str
    sample: Callable[[], Sample]
    options: tuple[str, ...]
    chunk: int


class ProgramJob(AnyJob):
    """An example with its sample on the shared broker, in topics that are deleted at the end.

    Args:
        bootstrap: The broker.
        folder: A new one.
        program: The program to run.
        registry: The schema registry's URL.
        config: Additional fields of `spark.pipeline.Config`.
    """

    def __init__(self, bootstrap: str, folder: Path, program: Program, registry: str, **config: Any) -> None:
        sample = program.sample()
        super().__init__(bootstrap, folder, target=sample.target, **config)
        self.config = replace(self.config, sources=tuple(sample.sources))
        self._program, self._registry = program, registry if sample.registry else None
        self.trial = Trial(sample, bootstrap=bootstrap, checkpoint=self.checkpoint, registry=self._registry)
        self._messages = self.trial.messages()

    def __enter__(self) -> Self:
        self.trial.make_topics()
        super().__enter__()
        self.trial.send(self._messages)
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        delete_topics(self.bootstrap, [*self.config.sources, self.config.target])

    def launch(self, chunk: int, point: str = "") -> Run:
        """Starts the example on its checkpoint."""
        program = [str(EXAMPLES / self._program.script), *self._program.options, "--bootstrap", self.bootstrap]
        program += ["--checkpoint", self.config.checkpoint, "--max-offsets", str(chunk)]
        program += ["--registry", self._registry] if self._registry else []
        points = (point,) if point not in Phase.__members__ else ()
        config = replace(self.config, points=points, program=tuple(program))
        # Each additional core is a worker, which takes time to start.
        env = run.spark_environment(Path(config.temporary), cores=1, java=config.jvm_flags)
        self.runs.append(Run([config], self.folder / f"run-{len(self.runs)}.log", env))
        return self.runs[-1]

    @contextmanager
    def killed_at(self, point: str) -> Iterator[None]:
        """Starts the example, waits until it has reached the point with rows in progress, and kills it at the end."""
        before = self.decided()

        def has_rows(batch: int) -> bool:
            if point == Phase.DECIDING.name:
                return bool(self.transactions("Ongoing"))
            return Phase[point] not in WITH_TRANSACTIONS or (batch > before and bool(self.last_rows()[1]))

        hold = hold_at(point, self, has_rows if point in Phase.__members__ else None)
        started = self.launch(self._program.chunk, point)
        hold.wait(started.check)
        yield
        started.kill()

    def finish(self) -> Count:
        """Starts it once more, and waits until all output has arrived."""
        started = self.launch(max(1, len(self._messages) // LAST_BATCHES))
        count = run._wait(self.trial, started._process)
        started.check()
        started.kill()
        return count

    def left_open(self) -> list[str]:
        """Lists the transactions that are still open, of any run but the newest."""
        tokens = {name: TransactionalId.parse(name).token for name in self.transactions()}  # type: ignore[union-attr]
        newest = max(tokens.values())
        return [name for name in self.transactions("Ongoing") if tokens.get(name, newest) != newest]

    def last_rows(self) -> tuple[int, tuple[Handle, ...]]:
        """Reads the transactions of the last batch that is decided and has any."""
        log = self.log()
        for batch in range(self.decided(), -1, -1):
            decision = log.decision(batch)
            handles = tuple(handle for handle in decision.handles if handle.transaction) if decision else ()
            if handles:
                return batch, handles
        return -1, ()


def delete_topics(bootstrap: str, topics: list[str]) -> None:
    """Deletes them, and waits until the broker no longer knows them."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.delete_topics(topics).values():
        done.result(LIMIT_S)
    eventually(lambda: not admin.list_topics(timeout=LIMIT_S).topics.keys() & set(topics), f"{topics} are gone")


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


@pytest.fixture
def registry() -> Iterator[str]:
    with RegistryServer() as server:
        yield server.url


@pytest.mark.slow
def test_the_etl_shows_a_batch_when_it_is_decided_and_says_so(kafka: Cluster, tmp_path: Path, registry: str) -> None:
    with ProgramJob(kafka.bootstrap, tmp_path, ETL, registry) as job:
        # Everything is prepared but undecided: the whole batch is on the topic, and readers see none of it.
        with job.killed_at("DECIDING"):
            target = job.trial.sample.target
            opened = job.transactions("Ongoing")
            assert len(opened) == 5
            assert {one.timeout_ms for one in opened.values()} == {600_000}
            assert len(read_uncommitted(job.bootstrap, target)) > 0 == len(read_committed(job.bootstrap, target))

        count = job.finish()
        assert count.is_done, count
        assert job.left_open() == []

        # The example's own output names the batch, and each transaction as the broker knows it.
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
            with job.killed_at(point):
                pass
        count = job.finish()
        say(f"{program.name}, killed at each of {', '.join(POINTS)}: {count}")
        assert count.is_done, count
        assert job.left_open() == []
