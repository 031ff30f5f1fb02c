"""The whole demo: a broker of its own, the query with sparkonce and with Spark's own sink, and the result."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from sparkonce.errors import ConfigurationError
from sparkonce_lab.checkpoint import check_place, new_folder, open_place, with_connector
from sparkonce_lab.demo.console import Console
from sparkonce_lab.demo.result import Result
from sparkonce_lab.demo.scenario import Context, new_workload
from sparkonce_lab.demo.variants import WithSparkonce, WithSparksOwn
from sparkonce_lab.rig.kafka import KAFKA_VERSION, Cluster, spark_kafka_jars
from sparkonce_lab.rig.process import end_on_signals


def run(
    console: Console,
    *,
    rows_per_second: int,
    seed: int,
    keep: Path | None,
    compare: bool,
    checkpoint: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> Result:
    """Runs the demo.

    Args:
        console: Shows what happens.
        rows_per_second: The rate of the orders.
        seed: Makes the same orders again.
        keep: A new or empty folder that keeps broker, checkpoints and logs; None for a temporary one.
        compare: Whether the query with Spark's own Kafka sink is killed as well.
        checkpoint: A folder of the user's, in which a new one is made for checkpoints; None for a temporary one here.
        conf: Spark's settings of its store.

    Raises:
        ConfigurationError: if Java or PySpark is missing, the folder to keep is not empty, or no checkpoint can be put.
        PreflightError: if the broker's or Spark's jars cannot be fetched.
        RunFailedError: if the demo cannot be carried through.
        ChildError: if the query's process ends by itself, or cannot be ended.
    """
    began = time.monotonic()
    with end_on_signals(), _folder(keep) as folder:
        away = new_folder(checkpoint, "demo") if checkpoint else ""
        console.status("fetching jars (the first time only)")
        jars, more = spark_kafka_jars(), dict(conf or {})
        if away:
            check_place(open_place(away, more))
            more = with_connector(away, more)
        console.status("a broker starts")
        with Cluster(folder=folder / "kafka") as cluster:
            workload = new_workload(rows_per_second, seed)
            console.say("broker", f"Kafka {KAFKA_VERSION} on {cluster.bootstrap}")
            console.say("engine", f"Spark {version('pyspark')}, two cores, {workload.partitions} shuffle partitions")
            console.say("orders", f"{rows_per_second:,} a second, in {workload.partitions} partitions; seed {seed}")
            if away:
                console.say("checkpoints", f"in {away}; delete it when you need it no more")
            context = Context(
                bootstrap=cluster.bootstrap,
                folder=folder,
                jars=jars,
                workload=workload,
                console=console,
                checkpoints=away,
                conf=more,
            )
            try:
                with_sparkonce = WithSparkonce(context).play()
                without = WithSparksOwn(context).play() if compare else None
            finally:
                if keep is None:
                    cluster.brokers[0].kill()  # its data are deleted anyway
    return Result(with_sparkonce=with_sparkonce, without=without, seconds=time.monotonic() - began)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="sparkonce-demo-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise ConfigurationError(f"--keep {keep} is not an empty folder.", next_step="Name a new one.")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.absolute()
