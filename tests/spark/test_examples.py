"""Runs each example program as users do, in its own process. The ETL example is killed (SIGKILL, with JVM and workers).

``examples/tryout`` computes the expected output from the sources and from the batches that Spark has recorded.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from eventually import LIMIT_S, eventually
from spark.harness import AnyJob, Run, hold_at
from sparkonce.protocol.ownership import TransactionalId
from sparkonce_lab.kafka import read_committed, read_uncommitted
from sparkonce_lab.registry import RegistryServer
from tryout import EnrichmentSample, EtlSample, SumSample, run
from tryout.trial import Trial

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

EXAMPLES = Path(__file__).parents[2] / "examples"


def delete_topics(bootstrap: str, topics: list[str]) -> None:
    """Deletes them, and waits until the broker no longer knows them."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.delete_topics(topics).values():
        done.result(LIMIT_S)
    eventually(lambda: not admin.list_topics(timeout=LIMIT_S).topics.keys() & set(topics), f"{topics} are gone")


@pytest.mark.slow
def test_the_etl_shows_a_batch_when_it_is_decided_and_says_so(kafka, tmp_path):
    sample = EtlSample(count=2500)
    job = AnyJob(kafka.bootstrap, tmp_path, target=sample.target)
    job.config = replace(job.config, sources=tuple(sample.sources))
    with RegistryServer() as registry:
        trial = Trial(sample, bootstrap=job.bootstrap, checkpoint=job.checkpoint, registry=registry.url)
        messages = trial.messages()

        def launch(chunk: int) -> Run:
            """Starts the example on its checkpoint. It reads this many records in a batch."""
            program = [str(EXAMPLES / "etl.py"), "--checkpoint-every", "0", "--lateness", "5 seconds"]
            program += ["--bootstrap", job.bootstrap, "--registry", registry.url]
            program += ["--checkpoint", job.config.checkpoint, "--max-offsets", str(chunk)]
            config = replace(job.config, program=tuple(program))
            # Each additional core means another worker, which takes time to start.
            env = run.spark_environment(Path(config.temporary), cores=1, java=config.jvm_flags)
            job.runs.append(Run([config], tmp_path / f"run-{len(job.runs)}.log", env))
            return job.runs[-1]

        trial.make_topics()
        with job:
            trial.send(messages)
            # Everything is prepared but undecided: the whole batch is on the topic, and readers see none of it.
            hold = hold_at("DECIDING", job, lambda batch: bool(job.transactions("Ongoing")))
            started = launch(200)
            hold.wait(started.check)
            opened = job.transactions("Ongoing")
            assert len(opened) == 5
            assert {one.timeout_ms for one in opened.values()} == {600_000}
            assert read_uncommitted(job.bootstrap, sample.target)
            assert read_committed(job.bootstrap, sample.target) == []
            started.kill()

            started = launch(len(messages) // 5)
            count = run._wait(trial, started._process)
            started.check()
            started.kill()
            assert count.is_done, count
            # Only the newest run, which was killed, may have left transactions open.
            tokens = {name: TransactionalId.parse(name).token for name in job.transactions()}
            newest = max(tokens.values())
            assert [name for name in job.transactions("Ongoing") if tokens.get(name, newest) != newest] == []

            # The example's own output names the batch, and each transaction as the broker knows it.
            decisions = [one for one in job.log().decisions if any(handle.transaction for handle in one.handles)]
            batch, handles = decisions[-1].batch, [one for one in decisions[-1].handles if one.transaction]
            lines = re.findall(
                rf"batch={batch} sink=kafka slot=(\d+) committed rows=\d+ "
                r"epoch=(\d+) producer_id=(\d+) transactional_id=(\S+): ok",
                started.log.read_text(),
            )
            assert len(lines) == len(handles) > 0
            known = job.transactions("PrepareCommit", "CompleteCommit")  # the coordinator may still write its markers
            for slot, epoch, producer_id, transactional_id in lines:
                assert transactional_id.startswith("identify-etl."), slot
                assert known[transactional_id].producer_id == int(producer_id)
                assert known[transactional_id].producer_epoch == int(epoch)
        delete_topics(job.bootstrap, [*sample.sources, sample.target])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "sample"),
    [("windowed_sum.py", SumSample(count=600)), ("enrichment.py", EnrichmentSample(count=200))],
)
def test_one_command_tries_an_example_out(kafka, script, sample, capfd, monkeypatch):
    monkeypatch.setattr(run, "FEED_S", 1.0)
    monkeypatch.setattr(run, "Cluster", lambda: nullcontext(kafka))
    assert run.try_out(str(EXAMPLES / script), sample, []) == 0
    said = capfd.readouterr()
    assert "\nexactly once" in said.out
    assert "INFO sparkonce batch=" in said.err
    delete_topics(kafka.bootstrap, [*sample.sources, sample.target])


def test_a_job_that_ends_by_itself_has_not_passed(kafka, capfd, monkeypatch):
    monkeypatch.setattr(run, "Cluster", lambda: nullcontext(kafka))
    assert run.try_out(str(EXAMPLES / "windowed_sum.py"), SumSample(count=600), ["--clock", "sundial"]) == 1
    said = capfd.readouterr()
    assert "NOT exactly once" in said.out
    assert "sundial" in said.err
    delete_topics(kafka.bootstrap, [*SumSample.sources, SumSample.target])
