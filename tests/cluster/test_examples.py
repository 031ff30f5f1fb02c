"""Three examples as they are on the cluster: killed, started again, and counted as whoever tries them out does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.faults import LIMIT_S
from cluster.job import ClusterJob
from cluster.standalone import Standalone
from cluster.stores import Store
from cluster.submit import Machine, Submitted, submit_words
from eventually import eventually
from spark.example_job import EXAMPLES, delete_topics
from spark.processes import kill
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.kafka.jars import spark_avro_jars
from sparkonce.testing.registry import RegistryServer
from tryout import EnrichmentSample, EtlSample, SumSample
from tryout import run as tryout
from tryout.checkpoint import RETAIN
from tryout.sample import Outcome, Sample
from tryout.trial import Trial

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]


class Mirrored(Trial):
    """Reads a checkpoint that is elsewhere from a copy of what Spark wrote about its batches."""

    def __init__(self, sample: Sample, store: Store, url: str, copy: Path, **more: Any) -> None:
        super().__init__(sample, checkpoint=copy, **more)
        self._store, self._url = store, url

    def outcome(self, decided: int = -1) -> Outcome:
        for log in ("commits", "offsets"):  # a batch that is done has its offsets
            (self._checkpoint / log).mkdir(parents=True, exist_ok=True)
            for name in self._store.names(f"{self._url}/{log}"):
                text = self._store.read(f"{self._url}/{log}/{name}")
                if name.isdigit() and text is not None:
                    (self._checkpoint / log / name).write_bytes(text)
        return super().outcome(decided)


@pytest.mark.parametrize(
    ("script", "sample", "options"),
    [
        ("etl.py", lambda: EtlSample(count=600), ("--lateness", "5 seconds")),
        ("windowed_sum.py", lambda: SumSample(count=1200), ()),
        ("enrichment.py", lambda: EnrichmentSample(count=600), ()),
    ],
    ids=["etl", "windowed sum", "enrichment"],
)
def test_an_example_on_the_cluster(
    kafka: Cluster,
    spark_cluster: Standalone,
    store: Store,
    tmp_path: Path,
    say: Callable[[str], None],
    script: str,
    sample: Callable[[], Sample],
    options: tuple[str, ...],
) -> None:
    """An executor is killed, then the driver, once some has come out."""
    job = ClusterJob(kafka.bootstrap, tmp_path, spark_cluster, store, rows=0, spark={RETAIN: "100000"})
    config = replace(job.config, jars=(*job.config.jars, *map(str, spark_avro_jars())))
    with ExitStack() as stack:
        made = sample()
        registry = stack.enter_context(RegistryServer()).url if made.registry else None
        trial = Mirrored(
            made, store, config.checkpoint, tmp_path / "copy", bootstrap=kafka.bootstrap, registry=registry
        )
        trial.make_topics()
        stack.callback(delete_topics, kafka.bootstrap, [*made.sources, made.target])
        messages = trial.messages()
        trial.send(messages)
        command = [*submit_words(config), "--py-files", str(EXAMPLES / "late_rows.py"), str(EXAMPLES / script)]
        command += ["--checkpoint-every", "0", *options, "--bootstrap", kafka.bootstrap]
        command += ["--checkpoint", config.checkpoint, "--max-offsets", str(len(messages) // 8)]
        command += ["--registry", registry] if registry else []

        def start(number: int) -> Submitted:
            run = Submitted(config.temporary, tmp_path / f"run-{number}.log", Machine(), command)
            stack.callback(run.kill)
            return run

        def some_out(run: Submitted, rows: int) -> int:
            run.check()
            count = trial.count()
            return count.seen if count.seen > rows else 0

        run = start(0)
        seen = eventually(lambda: some_out(run, 0), "some has come out", limit_s=LIMIT_S)
        kill(spark_cluster.executors()[0])
        eventually(lambda: some_out(run, seen), "more has come out", limit_s=LIMIT_S)
        run.kill()
        last = start(1)
        count = tryout._wait(trial, last._process)
        last.check()
        say(f"{script} on {store.kind}: {count}")
        assert count.is_done, count
