"""The write-ahead sink in a real query: crashes at each phase, and the examples as their users start them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pytest

from conformance.write_ahead_targets import AppendingTarget
from eventually import LIMIT_S
from http_bulk import BulkApi
from spark.in_process import MARKS, CrashError, Query, crash_at
from sparkonce import WriteAheadSink
from sparkonce.protocol.state import Phase
from sparkonce.write_ahead import Applies, ApplyToken, RefusedError, RetryLaterError
from sparkonce_lab.rig.kafka.jars import cache_folder
from sparkonce_lab.rig.process import HOST
from tryout.bulk import make_orders

pytestmark = [mark for mark in MARKS if mark.name != "kafka"]
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_query_that_crashes_at_each_phase(spark, tmp_path):
    """The driver crashes between calls of the function, so that even calls that must not be repeated are not."""
    sent = make_orders(tmp_path / "orders", files=8)
    target = AppendingTarget(tmp_path / "target")
    rows = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 2).json(str(tmp_path / "orders"))

    def run(listener: Callable[[Phase, int], None] | None = None) -> None:
        sink = WriteAheadSink(target, applies=Applies.NEITHER)
        query = Query(sink, checkpoint=str(tmp_path / "checkpoint"), listener=listener, display=False)
        query.write(rows.withColumnRenamed("id", "number"))

    for phase in (Phase.WRITING, Phase.CLAIMING, Phase.DECIDING, Phase.FINISHING, Phase.IDLE):
        with pytest.raises(CrashError):
            run(crash_at(phase, 1))
    run()
    assert sorted(target.visible()) == sent
    waiting = tmp_path / "checkpoint" / "sparkonce-write-ahead" / "write-ahead"
    left = {state: [path.name for path in (waiting / state).iterdir()] for state in ("open", "prepared", "started")}
    assert left == {"open": [], "prepared": [], "started": []}


@pytest.mark.parametrize(("status", "error"), [(409, RetryLaterError), (503, RetryLaterError), (422, RefusedError)])
def test_what_the_http_example_makes_of_an_answer(status, error):
    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(status)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    rows = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), [pa.record_batch({"id": [1]})])
    with HTTPServer((HOST, 0), Answers) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(error, match=str(status)):
            BulkApi(f"http://{HOST}:{server.server_port}")(
                rows, ApplyToken(id="t", query="q", batch=0, slots=(0,), rows=1)
            )
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("example", ["http_bulk", "sqlite_upsert", "customer_history"])
def test_the_examples(tmp_path, example):
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(tmp_path),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    fetched = f"--conf spark.jars.ivy={cache_folder() / 'spark-ivy'}"
    environment |= {"PYSPARK_SUBMIT_ARGS": f"--master local[2] --conf spark.ui.enabled=false {fetched} pyspark-shell"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{example}.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exactly once" in done.stdout
    assert "NOT" not in done.stdout
    assert " 0 were" not in done.stdout
