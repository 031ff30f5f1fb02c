"""A length that no record has, tested in a separate Spark session, which it could crash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eventually import LIMIT_S
from sparkonce_lab.rig.kafka import spark_avro_jars
from startup import jvm_flags

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOB = """
import json, logging, sys
from pyspark.sql import SparkSession
from sparkonce.avro import SchemaRegistry, decode_registry_avro
from sparkonce.avro.schemas import wire_header
from sparkonce.avro import limits
from sparkonce_lab.registry import RegistryServer

jars, flags, folder = sys.argv[1:]
logging.basicConfig(filename=f"{folder}/log", level="WARNING")
builder = SparkSession.builder.master("local[1]").config("spark.jars", jars).config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
builder = builder.config("spark.driver.memory", "512m")
spark = builder.config(limits.DRIVER, flags.replace("LIMITS", limits.java_options())).getOrCreate()
kinds = ["string", "bytes", {"type": "array", "items": "null"}, {"type": "map", "values": "null"}]
found = []
with RegistryServer() as server:
    for number, kind in enumerate(kinds):
        subject = f"orders-{number}"
        schema = {"type": "record", "name": f"R{number}", "fields": [{"name": "a", "type": kind}]}
        # A length of 1.9 GB in five bytes.
        rows = [(wire_header(server.register(subject, schema)) + bytes([0x80, 0xE0, 0xFF, 0x93, 0x0E]),)]
        df = spark.createDataFrame(rows, "value binary").repartition(1)
        decoded = decode_registry_avro(
            df, subject=subject, registry=SchemaRegistry({"url": server.url}), on_error="dead-letter",
            later_ids="stop", located_by=(),
        )
        found += [row["dead_letter"]["reason"] for row in decoded.collect()]
print(json.dumps(found))
"""


def test_with_avros_limits_a_length_that_no_record_has_is_a_dead_letter(tmp_path: Path) -> None:
    def run(folder: Path, limits: str) -> subprocess.CompletedProcess[str]:
        job = folder / "job.py"
        job.write_text(JOB)
        flags = f"{jvm_flags()} -Djava.io.tmpdir={folder} {limits}"
        arguments = [",".join(map(str, spark_avro_jars())), flags, str(folder)]
        return subprocess.run(
            [sys.executable, str(job), *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=folder,
        )

    done = run(tmp_path, "LIMITS")
    assert done.returncode == 0, done.stderr
    reasons = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(reasons) == 4
    assert all("it is not a record of schema id" in one for one in reasons)
    assert "OutOfMemoryError" not in (tmp_path / "log").read_text()
