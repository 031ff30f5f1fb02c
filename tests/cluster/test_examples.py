"""Three examples as they are on the cluster: killed, started again, and counted as whoever tries them out does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.example import SCRIPTS, ClusterExample
from cluster.standalone import Standalone
from cluster.stores import Store
from spark.processes import kill
from sparkonce.rig.kafka import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_on_the_cluster(
    kafka: Cluster, spark_cluster: Standalone, store: Store, tmp_path: Path, say: Callable[[str], None], name: str
) -> None:
    """An executor is killed, then the driver, once some has come out."""
    with ClusterExample(SCRIPTS[name], kafka, spark_cluster, store, tmp_path) as example:
        run = example.start()
        seen = example.more_out(run)
        kill(spark_cluster.executors()[0])
        example.more_out(run, than=seen)
        run.kill()
        count = example.finish(example.start())
        say(f"{name} on {store.kind}: {count}")
        assert count.is_done, count
