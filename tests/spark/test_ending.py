"""How a query ends and how this is reported, both in this process and as a separate job that gets a signal."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys

import pytest
from pyspark.sql import functions as F

from eventually import eventually
from spark.in_process import LIMIT_S, MARKS, CrashError, crash_at
from sparkonce import ExactlyOnce, KafkaSink, await_end
from sparkonce.errors import PrepareError
from sparkonce.protocol.state import Phase
from startup import jvm_flags

pytestmark = [*MARKS, pytest.mark.usefixtures("travels")]


def refuse(value: str) -> str:
    raise ValueError(f"not {value}")


def test_an_error_of_the_users_own_is_all_that_is_told(stream, tmp_path, capsys):
    line = refuse.__code__.co_firstlineno + 1
    refused = stream.records(400).withColumn("value", F.udf(refuse)("value"))
    sink = KafkaSink({"bootstrap.servers": stream.bootstrap}, topic=stream.target)
    query = ExactlyOnce(sink, checkpoint=str(tmp_path / "cp")).start(refused, query_name="sums")
    with pytest.raises(SystemExit) as ended:
        await_end(query)
    assert ended.value.code == 1
    message, next_step = capsys.readouterr().err.splitlines()
    assert message.startswith("The query 'sums' has failed. PrepareError: ValueError: not 0")
    assert message.endswith(f' ({__file__}, line {line}: raise ValueError(f"not {{value}}")).')
    assert next_step.startswith("Next: Remove the cause and start the query again")
    gc.collect()


def test_a_worker_that_died_is_told_as_one(stream):
    dies = F.udf(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(PrepareError, match=r"^A Python worker died on \S+ executor driver: Task \d") as told:
        stream.run(lambda rows: rows.withColumn("value", dies("value")))
    assert "dmesg" in told.value.next_step
    assert "PythonRunner" not in str(told.value)


def test_where_a_query_goes_on_is_said(stream, caplog):
    caplog.set_level(logging.INFO)
    for phase in (Phase.DECIDING, Phase.FINISHING):
        with pytest.raises(CrashError):
            stream.run(listener=crash_at(phase, 1))
    assert "Batch 1 was not decided: its open transactions are aborted, and it is written again." in caplog.messages
    stream.run()
    assert "Batch 1 was decided and may not be finished: it is committed first." in caplog.messages
    assert [line for line in caplog.messages if line.startswith("batch=1 committed") and " recovered in " in line]
    stream.run()
    assert "Resuming after batch 2." in caplog.messages


@pytest.mark.slow
def test_a_job_that_gets_a_signal_ends_in_order(tmp_path):
    """Ctrl-C reaches everything that runs in the terminal. PySpark's own handler would make the current batch fail."""
    job, said = tmp_path / "job.py", tmp_path / "said"
    job.write_text("""
import sys
from pyspark.sql import SparkSession
from sparkonce import ExactlyOnce, FilesSink

folder, flags = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": flags, "spark.local.dir": folder}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load()
sink = FilesSink(f"{folder}/out", format="json")
query = ExactlyOnce(sink, checkpoint=f"{folder}/checkpoint").start(rows, trigger="100 milliseconds")
""")
    program = "from sparkonce.cli.main import app; app()"
    with said.open("w") as file:
        run = subprocess.Popen(
            [sys.executable, "-c", program, "run", str(job), str(tmp_path), jvm_flags()],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        eventually(lambda: "batch=1 committed" in said.read_text() or run.poll() is not None, "two batches are there")
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(LIMIT_S) == 0, said.read_text()
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    lines = said.read_text().splitlines()
    assert any(line.startswith("SIGINT: stopping ") for line in lines)
    assert not [line for line in lines if "Traceback" in line or ("Exception" in line and "Interrupted" not in line)]
    assert [line for line in lines if " INFO sparkonce: batch=0 committed rows=4 transactions=2 in " in line]
