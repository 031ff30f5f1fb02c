"""The clock that jumps is the driver's: in Python and in its JVM, and not in the Python workers."""

import json
import os
import subprocess
import sys
import time

import pytest

from sparkonce_lab.clock import FakeClock, find_faketime
from sparkonce_lab.query import QueryConfig
from startup import jvm_flags

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.skipif(find_faketime() is None, reason="libfaketime is not installed")
def test_only_the_drivers_clock_is_another(tmp_path):
    program = """
import json, sys, time
from sparkonce_lab.clock import adapt_python
from sparkonce_lab.query import QueryConfig, session

def of_worker(batches):
    import pyarrow as pa
    for batch in batches:
        yield pa.record_batch({"s": [time.time()]})

adapt_python()
spark = session(QueryConfig.of_json(sys.argv[1]))
rows = spark.range(1).mapInArrow(of_worker, "s double").collect()
jvm_s = spark.sparkContext._jvm.System.currentTimeMillis() / 1000
print(json.dumps({"driver": time.time(), "jvm": jvm_s, "worker": rows[0].s}))
spark.stop()
"""
    day_s = 86_400
    library = find_faketime()
    assert library is not None
    config = QueryConfig(
        source={},
        topic="",
        sinks={},
        checkpoint="",
        temporary=str(tmp_path),
        jars=(),
        window_ms=1,
        java_flags=jvm_flags(),
    )
    before = time.time()
    done = subprocess.run(
        [sys.executable, "-c", program, config.to_json()],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            **FakeClock(library, tmp_path / "clock", day_s).env(),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    ahead = {name: s - before > day_s / 2 for name, s in said.items()}
    assert ahead == {"driver": True, "jvm": True, "worker": False}
