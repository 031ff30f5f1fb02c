"""Many faults of one query on a cluster, drawn by a seed: each after the batch that follows the one before.

::

    PYTHONPATH=tests python -m cluster.soak --store file --faults 50 --seed 1
"""

from __future__ import annotations

import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cluster.faults import FAULTS, Scene, points_of
from cluster.job import ClusterJob
from cluster.standalone import Standalone
from cluster.stores import STORES
from spark.harness import Verdict
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.process import end_on_signals
from striking.points import BEGIN, PREPARED, WRITTEN

ROWS_PER_BATCH = 100
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "5s",
}
BROKERS = {
    "auto.create.topics.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
}


def soak(
    kind: str, faults: int, seed: int, folder: Path, *, brokers: int = 3, say: Callable[[str], None] = typer.echo
) -> Verdict:
    """Runs a query through so many faults, tells of each, and counts at the server.

    Args:
        kind: Of the store, see `STORES`.
        faults: How many.
        seed: Draws kind, point and victim of each.
        folder: A new one.
        brokers: How many brokers, of which all but one must have a row.
        say: Is told.
    """
    dice = random.Random(f"{seed} {kind}")
    done: Counter[str] = Counter()
    begun = time.monotonic()
    say(f"--store {kind} --faults {faults} --seed {seed} --brokers {brokers}")
    with (
        Cluster(nodes=brokers, overrides=BROKERS) as kafka,
        Standalone(folder / "spark", workers=3) as spark,
        STORES[kind](folder / "store") as store,
        ClusterJob(
            kafka.bootstrap,
            folder / "job",
            spark,
            store,
            rows=ROWS_PER_BATCH,
            rows_per_batch=ROWS_PER_BATCH,
            points=(BEGIN, WRITTEN, PREPARED),
            spark=SPECULATION,
        ) as job,
    ):
        scene = Scene(job, spark, kafka, dice)
        for number in range(1, faults + 1):
            # Every kind comes up as often as every other.
            least = min(done[fault] for fault in FAULTS)
            fault = dice.choice([each for each in FAULTS if done[each] == least])
            point = dice.choice(points_of(fault))
            say(f"{time.monotonic() - begun:7.0f} s  {number:3}: {fault}, at {point}")
            scene.strike(FAULTS[fault], point)
            done[fault] += 1
        scene.finish()
        verdict = job.judge()
        say(
            f"{kind}, seed {seed}: {faults} faults ({dict(done)}), {job.decided() + 1} batches, {len(job.runs)} "
            f"drivers, {spark.ever_started()} executors, {time.monotonic() - begun:.0f} s: {verdict}",
        )
    return verdict


def main(
    store: Annotated[str, typer.Option(help="|".join(STORES))] = "file",
    faults: int = 50,
    seed: Annotated[int, typer.Option(help="0: a new one")] = 0,
    folder: Annotated[str, typer.Option(help="is kept; by default a temporary one")] = "",
    brokers: int = 3,
) -> None:
    seed = seed or secrets.randbelow(1 << 31)
    with end_on_signals(), tempfile.TemporaryDirectory(prefix="sparkonce-soak-") as temporary:
        verdict = soak(store, faults, seed, Path(folder or temporary).absolute(), brokers=brokers)
    sys.exit(0 if verdict.is_exactly_once else 1)


if __name__ == "__main__":
    typer.run(main)
