"""The whole demo: a broker of its own, the query with sparkonce and without, and what came of it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sparkonce.errors import ConfigurationError
from sparkonce.lab.demo.act import Stage, WithSparkonce, WithSparksOwn
from sparkonce.lab.demo.result import Result
from sparkonce.lab.demo.show import Teller
from sparkonce.rig.kafka import KAFKA_VERSION, Cluster, spark_kafka_jars
from sparkonce.rig.process import end_on_signals


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What can be chosen.

    Attributes:
        rows_per_second: Of the orders.
        seed: Makes the same orders again.
        keep: A new or empty folder that keeps broker, checkpoints and logs; None for a temporary one.
        compare: Whether Spark's own Kafka sink is killed as well.
    """

    rows_per_second: int = 1000
    seed: int = 1
    keep: Path | None = None
    compare: bool = True


def run(options: Options, teller: Teller) -> Result:
    """Runs the demo.

    Raises:
        ConfigurationError: if Java or PySpark is missing, or the folder to keep is not empty.
        PreflightError: if the broker's or Spark's jars cannot be had.
        DemoFailedError: if it cannot be carried through.
    """
    began = time.monotonic()
    with end_on_signals(), _folder(options.keep) as folder:
        teller.status("fetching jars (the first time only)")
        jars = spark_kafka_jars()
        teller.status("a broker starts")
        with Cluster(folder=folder / "kafka") as cluster:
            teller.say("broker", f"Kafka {KAFKA_VERSION} on {cluster.bootstrap}")
            teller.say("engine", f"Spark {version('pyspark')}, two cores, 4 shuffle partitions")
            teller.say("orders", f"{options.rows_per_second:,} a second, in 4 partitions; seed {options.seed}")
            stage = Stage(
                bootstrap=cluster.bootstrap,
                folder=folder,
                jars=jars,
                rows_per_second=options.rows_per_second,
                seed=options.seed,
                teller=teller,
            )
            try:
                with_sparkonce = WithSparkonce(stage).play()
                without = WithSparksOwn(stage).play() if options.compare else None
            finally:
                if options.keep is None:
                    cluster.brokers[0].kill()  # nothing of it is needed any more
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
        raise ConfigurationError(f"--keep {keep} is not an empty folder.", next_step="name a new one.")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.absolute()
