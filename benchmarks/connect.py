"""Measures what Spark Connect costs: the same query in a classic session and through Connect, on one machine.

    python3 dev.py run python benchmarks/connect.py [--rounds 5]

In each round, each kind of session runs a query over rows that are already on the topic, in large batches and in small
ones. Only the second half of its batches counts, since the first one starts and compiles whatever it needs. By default,
only a classic session writes a small batch as one slot, so it is measured with a slot for each partition as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from session import PARTITIONS
from sparkonce_lab.kafka import create_topic, produce
from sparkonce_lab.rig.kafka import Cluster
from sparkonce_lab.rig.kafka.jars import spark_kafka_jars

LOADS = {"large": (16, 100_000), "small": (60, 250)}
"""The number of batches and the rows of each."""
SESSIONS = {"classic": None, "classic, a slot for each partition": 1, "connect": None}
"""Sessions, with ``rows_per_slot``."""
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from sparkonce import ExactlyOnce, KafkaSink, read_kafka
connect, rows_per_slot, bootstrap, source, target, folder, most, jars = json.loads(sys.argv[1])
builder = SparkSession.builder.remote("local[2]") if connect else SparkSession.builder.master("local[2]")
conf = {"spark.jars": jars, "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.local.dir": folder}
spark = builder.config(map=conf).getOrCreate()
broker = {"bootstrap.servers": bootstrap}
rows = read_kafka(spark, broker, topics=source, max_offsets_per_trigger=most).select("key", "value")
sink = KafkaSink(broker, topic=target)
once = ExactlyOnce(sink, checkpoint=folder + "/checkpoint", rows_per_slot=rows_per_slot, display=False)
query = once.start(rows, trigger="availableNow")
query.awaitTermination()
done = [one.durationMs for one in query.recentProgress]
print(json.dumps([durations["triggerExecution"] for durations in done if "addBatch" in durations]))
"""


def batch_ms(session: str, bootstrap: str, source: str) -> float:
    """Returns the median duration of a batch in the second half of one run."""
    target = f"{source}-{os.urandom(4).hex()}"
    create_topic(bootstrap, target, PARTITIONS)
    batches, most = LOADS[source]
    with tempfile.TemporaryDirectory() as folder:
        jars = ",".join(map(str, spark_kafka_jars()))
        given = [session == "connect", SESSIONS[session], bootstrap, source, target, folder, most, jars]
        (Path(folder) / "query.py").write_text(PROGRAM)
        command = [sys.executable, f"{folder}/query.py", json.dumps(given)]
        env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with (Path(folder) / "log").open("w+") as log:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env, check=False)
            log.seek(0)
            assert done.returncode == 0, log.read()
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    assert len(found) >= batches, found
    return median(found[len(found) // 2 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with Cluster(heap="1g", jvm_flags=()) as cluster:
        for load, (batches, most) in LOADS.items():
            create_topic(cluster.bootstrap, load, PARTITIONS)
            rows: Any = ({"value": b"x" * 100, "partition": one % PARTITIONS} for one in range(batches * most))
            produce(cluster.bootstrap, load, rows, timeout_s=300)
        for load in LOADS:
            found: dict[str, list[float]] = {session: [] for session in SESSIONS}
            for number in range(rounds):
                for session, durations in found.items():
                    durations.append(batch_ms(session, cluster.bootstrap, load))
                    print(f"{load}, round {number + 1}, {session}: {durations[-1]:.0f} ms", flush=True)
            connect = found.pop("connect")
            print(f"{load}, connect: {median(connect):.0f} ms")
            for session, durations in found.items():
                ratios = [one / other for one, other in zip(durations, connect, strict=True)]
                spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
                print(f"{load}, {session}: {median(durations):.0f} ms, ratio {median(ratios):.2f} ({spread})")


if __name__ == "__main__":
    main()
