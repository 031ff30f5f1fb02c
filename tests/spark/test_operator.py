"""An operator with a stuck reader and a dead driver: four commands, without Spark. ``-s`` shows their output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from spark.harness import Job, start_together
from spark.kills import hold_at, start_held
from spark.pipeline import ENDED
from sparkonce_lab.rig.kafka import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ROWS, ROWS_PER_BATCH, BATCH = 1_200, 400, 1
LIMIT_S = 120


class Operator:
    """Runs sparkonce's commands, with addresses from a file."""

    def __init__(self, job: Job, say: Callable[[str], None]) -> None:
        self._say = say
        self._config = job.folder / "systems.yaml"
        self._config.write_text(f"systems:\n  kafka: {{bootstrap.servers: '{job.bootstrap}'}}\n")

    def reads(self, *words: str) -> str:
        command = [*words, "--config", str(self._config)] if words[0] == "transactions" else list(words)
        done = subprocess.run(
            [sys.executable, "-m", "sparkonce", *command], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        self._say(f"$ sparkonce {' '.join(words)}\n{done.stdout}{done.stderr}")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def knows(self, *words: str) -> Any:
        return json.loads(self.reads(*words, "--format", "json"))


def readable(job: Job) -> dict[int, tuple[int, int]]:
    """Returns the position of a read_committed reader and the end offset for each partition."""

    def ends(level: str) -> dict[int, int]:
        settings = {"bootstrap.servers": job.bootstrap, "group.id": "operator", "isolation.level": level}
        consumer = Consumer(settings)
        try:
            numbers = consumer.list_topics(job.config.target, LIMIT_S).topics[job.config.target].partitions
            asked = {number: TopicPartition(job.config.target, number) for number in numbers}
            return {number: consumer.get_watermark_offsets(one, LIMIT_S)[1] for number, one in asked.items()}
        finally:
            consumer.close()

    stable, high = ends("read_committed"), ends("read_uncommitted")
    return {number: (stable[number], high[number]) for number in high}


def stuck(job: Job) -> set[int]:
    return {number for number, (stable, high) in readable(job).items() if stable < high}


def test_a_stuck_reader_is_freed_without_spark(kafka: Cluster, tmp_path: Path, say: Callable[[str], None]) -> None:
    plan = "spark.plans:stateless"
    with Job(kafka.bootstrap, tmp_path, rows=ROWS, again=False, rows_per_batch=ROWS_PER_BATCH, plan=plan) as job:
        held = start_held({job: hold_at("FINISHING", job, batch=BATCH)}, ["FINISHING"], tmp_path / "first.log")
        held.kill()
        operator, checkpoint = Operator(job, say), str(job.checkpoint)
        blocked = stuck(job)
        assert blocked, "readers stand still"

        # Lists the transactions, with their age and what will happen to them.
        found = operator.knows("transactions", "list", "--query", job.query, "--checkpoint", checkpoint)
        assert {one["verdict"] for one in found} == {"commit"}
        assert all(one["age_s"] > 0 for one in found)
        held_by: dict[int, str] = {}
        for one in found:
            told = operator.knows("transactions", "describe", one["name"], "--checkpoint", checkpoint)
            assert f"Batch {BATCH} is decided." in told["why"]
            held_by |= {place["partition"]: one["name"] for place in told["partitions"] if place["blocks"]}
        assert held_by.keys() == blocked
        assert operator.knows("checkpoint", "show", checkpoint)["next_start"] == "commits"

        # Ends them according to the log, and checks that everything is there.
        assert operator.knows("transactions", "resolve", checkpoint, "--yes")["batch"] == BATCH
        assert stuck(job) == set()
        assert operator.knows("transactions", "list", "--query", job.query) == []
        history = operator.knows("checkpoint", "history", checkpoint)
        decided = sum(sum(one["rows"].values()) for one in history if one["kind"] == "commit")
        assert decided == len(job.records()) == (BATCH + 1) * ROWS_PER_BATCH

        # The query can continue at any time, and its output has each row once.
        start_together([job], tmp_path / "next.log", points=()).join()
        assert job.gate.at(ENDED, failed="")
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict
        say(f"Started again: {verdict}")
