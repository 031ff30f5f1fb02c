"""A job from Kafka to Kafka imports no modules of other systems, neither on its driver nor on its workers."""

from __future__ import annotations

import re
import subprocess
import sys

JOB = """
import sys
from sparkonce import ExactlyOnce, KafkaSink, await_end, read_kafka
import sparkonce.executor
import sparkonce.sinks.kafka.committer
import sparkonce.sinks.kafka.blocking
import sparkonce.sinks.kafka.preflight
import sparkonce.sinks.kafka.writer
print("\\n".join(name for name in sys.modules if name.split(".")[0] == "sparkonce"))
"""


def test_a_job_with_kafka_imports_no_other_system() -> None:
    others = r"explain|pravega|rabbitmq|tables|write_ahead|sinks\.(files|memory|mysql|postgres|redis)"
    # Raise this only if the job really needs more modules.
    most = 108
    done = subprocess.run([sys.executable, "-c", JOB], capture_output=True, text=True, check=True, timeout=120)
    found = done.stdout.split()
    foreign = [name for name in found if re.search(others, name)]
    assert foreign == []
    print(f"{len(found)} modules of sparkonce")  # noqa: T201 - `pytest -s` shows how many
    assert len(found) <= most


WITHOUT_CLIENTS = """
import sys
for name in ("pymysql", "psycopg", "redis", "boto3", "obstore", "hdfs_native", "fastavro", "prometheus_client"):
    sys.modules[name] = None  # as if it were not installed
from sparkonce import *
import sparkonce.spark.formats.sources
import sparkonce_lab.systems.names
"""


def test_whoever_lacks_a_client_can_still_import_everything_else() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_CLIENTS], check=True, timeout=120)
