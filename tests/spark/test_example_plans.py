"""The plans of all examples, both clocks of those that have two, killed at every point of the protocol, and counted::

pytest -m slow -s tests/spark/test_example_plans.py
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from spark.example_plans import AT_ONCE, REGISTRY
from spark.harness import Message, Verdict
from spark.kills import POINTS, check_points
from spark.matrix import ROWS_PER_BATCH, Example, ExampleJob, start, strike
from spark.processes import LIMIT_S
from sparkonce.embedded import Cluster, spark_avro_jars, spark_kafka_jars
from sparkonce.testing.kafka import read_committed
from sparkonce.testing.registry import RegistryServer
from tryout import EnrichmentSample, EtlSample, SumSample
from tryout.checkpoint import read_batches
from tryout.etl import STEP_MS
from tryout.sample import Sample

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 40 * ROWS_PER_BATCH
STATE = "spark.sql.streaming.stateStore"
ROCKSDB = {
    f"{STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
}
AT_ONCE_WINDOW = AT_ONCE["window"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plan of `spark.example_plans`, and what it is fed."""

    plan: str
    sample: Sample
    sql: dict[str, str]


def cases(registry: str) -> list[Case]:
    utc = {"spark.sql.session.timeZone": "UTC"}
    avro = {**utc, REGISTRY: registry}
    began_ms = EtlSample().began_ms - ROWS * STEP_MS  # or the last of so many rows would be of the future
    return [
        Case(plan="etl_by_record", sample=EtlSample(count=ROWS, began_ms=began_ms), sql=avro),
        Case(
            plan="etl_by_processing",
            sample=EtlSample(count=ROWS, clock="processing", window=AT_ONCE_WINDOW),
            sql=avro,
        ),
        Case(plan="sum_by_event", sample=SumSample(count=ROWS), sql=utc),
        Case(
            plan="sum_by_processing", sample=SumSample(count=ROWS, clock="processing", window=AT_ONCE_WINDOW), sql=utc
        ),
        Case(plan="join", sample=EnrichmentSample(count=ROWS * 5 // 6), sql={**utc, **ROCKSDB}),
    ]


class Job(ExampleJob):
    """Judged by its sample, from what Spark has written down about its batches."""

    def __init__(self, bootstrap: str, folder: Path, case: Case, registry: str) -> None:
        sent: dict[str, list[Message]] = {source: [] for source in case.sample.sources}
        for message in case.sample.messages(registry):
            sent[message.topic].append((str(message.timestamp_ms).encode(), message.value))
        closing = [(str(one.timestamp_ms).encode(), one.value) for one in case.sample.closing(registry)]
        example = Example(
            name=case.plan,
            plan=f"spark.example_plans:{case.plan}",
            sent=list(sent.values()),
            closing=[closing * 2 * ROWS_PER_BATCH for _ in sent],
            expected=lambda _: Counter(),  # see `judge`
            sql=case.sql,
        )
        super().__init__(bootstrap, folder / case.plan, example)
        jars = [*spark_kafka_jars(), *spark_avro_jars()]
        self.config = replace(self.config, jars=tuple(str(jar) for jar in jars))
        self._sample = case.sample

    def judge(self) -> Verdict:
        topics = dict(zip(self._sample.sources, self.config.sources, strict=True))
        batches = [
            replace(batch, ends={name: batch.ends[topic] for name, topic in topics.items()})
            for batch in read_batches(self.checkpoint)
        ]
        sources = {
            name: [
                record._replace(timestamp_ms=int(record.key or b"0"))
                for record in read_committed(self.bootstrap, topic, timeout_s=LIMIT_S)
            ]
            for name, topic in topics.items()
        }
        outcome = self._sample.outcome(sources, batches)
        assert outcome.unread == 0
        return self.count(Counter((row.key, row.value) for row in outcome.rows))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_plan_at_every_point(kafka: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        registry = stack.enter_context(RegistryServer()).url
        jobs = [stack.enter_context(Job(kafka.bootstrap, tmp_path, case, registry)) for case in cases(registry)]
        for number, point in enumerate(POINTS):
            strike(point, jobs, tmp_path / f"{number}.log")
            with capsys.disabled():
                print(f"{point}: in batches {[job.kills[-1].batch for job in jobs]}", flush=True)  # noqa: T201
        for job in jobs:
            job.feed_all()
        start(jobs, tmp_path / "last.log").finish(limit_s=3 * LIMIT_S)
        verdicts = [job.judge() for job in jobs]
        with capsys.disabled():
            print("\n" + table(jobs, verdicts))  # noqa: T201 - the table is what it is for
        for job, verdict in zip(jobs, verdicts, strict=True):
            assert verdict.is_exactly_once, f"{job.example.name}: {verdict}"
            check_points(job.kills)


def table(jobs: list[Job], verdicts: list[Verdict]) -> str:
    lines = [f"{'':<18} kills    rows  missing  doubled  strange  seen before the decision"]
    for job, verdict in zip(jobs, verdicts, strict=True):
        lines.append(
            f"{job.example.name:<18} {len(job.kills):>5}  {verdict.rows:>6,}  {verdict.missing:>7}  "
            f"{verdict.doubled:>7}  {verdict.strange:>7}  {verdict.uncommitted_seen:>24}"
        )
    return "\n".join(lines)
