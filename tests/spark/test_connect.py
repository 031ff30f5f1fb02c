"""Queries of Spark Connect: committed exactly once by the Python process next to the server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventually import LIMIT_S, eventually
from secured import LOGIN, PASSWORD
from spark.connect_server import Client, ConnectServer
from spark.harness import Job, hold_at, new_name, path_of_tests
from spark.pipeline import ENDED, REFUSED, SPARK_STOPS
from sparkonce.decision_log import DecisionLog
from sparkonce.protocol.view import LogView
from sparkonce.storage.local import LocalFiles
from sparkonce_lab.kafka import create_topic, produce, read_committed
from sparkonce_lab.rig.kafka import Cluster
from sparkonce_lab.rig.kafka.jars import spark_kafka_jars

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

COPY = """
import sys
from pyspark.sql import SparkSession
from sparkonce import ExactlyOnce, KafkaSink, await_end, read_kafka
url, bootstrap, source, target, checkpoint, trigger = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
rows = read_kafka(spark, {"bootstrap.servers": bootstrap}, topics=source).select("value")
once = ExactlyOnce(KafkaSink({"bootstrap.servers": bootstrap}, topic=target), checkpoint=checkpoint)
query = once.start(rows, trigger=trigger)
"""
"""A program that copies a topic: url, bootstrap.servers, source, target, checkpoint, trigger."""
COPY_AND_WAIT = f"{COPY}await_end(query)\nassert once.progress() == []  # it is kept on the server\nspark.stop()"

CLIENTS = ("4.0.0", "4.1.1", "4.2.0")
"""Spark lets an older client use a newer server. A newer client and an older server is more than it promises."""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect")) as made:
        yield made


def test_a_query_into_kafka_is_committed_exactly_once(broker, server, tmp_path):
    with Job(broker.bootstrap, tmp_path / "job", rows=600, rows_per_batch=300, slots=2) as job:
        Client(server, [job], tmp_path / "client.log").finish()
        assert job.judge() == ""
        assert job.decided() >= 1


@pytest.mark.slow
def test_what_the_first_batch_refuses_is_said_on_the_client(broker, server, tmp_path):
    source, target = source_of_one_row(broker), new_name("target")
    arguments = [server.url, broker.bootstrap, source, target, str(tmp_path / "c"), "availableNow"]
    said = run(COPY_AND_WAIT, arguments)
    assert said.returncode == 1
    assert f"topic={target!r} does not exist" in said.stderr
    assert "Next: " in said.stderr

    create_topic(broker.bootstrap, target, 1)
    assert run(COPY_AND_WAIT, arguments).returncode == 0
    assert values(broker, target) == [b"v"]
    claimed = DecisionLog(LocalFiles(tmp_path / "c")).read(LogView()).newest_run
    assert [name for name, _ in claimed.sources] == [source], "the log keeps the id of the topic"


@pytest.mark.slow
@pytest.mark.parametrize("version", CLIENTS)
def test_a_client_without_java_and_py4j(broker, server, tmp_path, version):
    """For another server: ``python3 dev.py test --spark 4.1.1 tests/spark/test_connect.py``."""
    packages = [f"pyspark-client=={version}", "zstandard"]  # since 4.1, clients need the latter
    uv = shutil.which("uv") or str(Path(__file__).parents[2] / ".tools" / "bin" / "uv")  # as dev.py installs it
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "client"), *packages]
    subprocess.run(install, check=True)
    (tmp_path / "client" / "py4j.py").write_text("raise ModuleNotFoundError('py4j')")

    source, target = source_of_one_row(broker), new_name("target")
    create_topic(broker.bootstrap, target, 1)
    arguments = [server.url, broker.bootstrap, source, target, str(tmp_path / "c"), "availableNow"]
    done = run(COPY_AND_WAIT, arguments, tmp_path / "client")
    assert done.returncode == 0, done.stderr
    assert values(broker, target) == [b"v"]


@pytest.mark.slow
def test_sparkonce_run_waits_for_a_query_and_stops_it(broker, server, tmp_path):
    (tmp_path / "job.py").write_text(COPY)
    source, target = source_of_one_row(broker), new_name("target")
    job = [sys.executable, "-m", "sparkonce", "run", str(tmp_path / "job.py"), server.url, broker.bootstrap, source]
    first, second = ([*job, target, str(tmp_path / name), "1 second"] for name in ("first", "second"))
    failed = subprocess.run(first, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert failed.returncode == 1
    assert f"topic={target!r} does not exist" in failed.stderr
    assert "Traceback" not in failed.stderr

    create_topic(broker.bootstrap, target, 1)
    with subprocess.Popen(second, env=environment(), stderr=subprocess.PIPE, text=True) as running:
        try:
            eventually(lambda: running.poll() is not None or values(broker, target), "the row arrives")
            running.send_signal(signal.SIGTERM)
            _, said = running.communicate(timeout=LIMIT_S)
        finally:
            running.kill()
    assert "SIGTERM: stopping" in said
    assert running.returncode == 0, said
    assert values(broker, target) == [b"v"]


@pytest.mark.slow
def test_a_batch_leaves_the_settings_of_the_clients_session_as_they_were(broker, server, tmp_path):
    """The query has a view, and is stopped within its second batch, whose only task waits for a pipe."""
    program = """
import sys
from pyspark.sql import SparkSession, functions as F
from eventually import eventually
from sparkonce import ExactlyOnce, KafkaSink, await_end, read_kafka
url, bootstrap, source, target, checkpoint, pipe = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"
OTHERS = (
    "spark.sql.adaptive.applyFinalStageShuffleOptimizations",
    "spark.sql.sources.bucketing.autoBucketedScan.enabled",
)

def bounds():
    return [spark.conf.get(name, None) for name in (LIMIT, *OTHERS)]

def blocked(rows):
    def read(value):
        open(pipe).close()
        return value
    return rows.select(F.udf(read, "binary")("value").alias("value"))

def start(view, trigger):
    rows = read_kafka(spark, {"bootstrap.servers": bootstrap}, topics=source).select("value")
    sink = KafkaSink({"bootstrap.servers": bootstrap}, topic=target)
    return ExactlyOnce({sink: view}, checkpoint=checkpoint).start(rows, trigger=trigger)

before = bounds()
spark.conf.set(OTHERS[0], "true")
await_end(start(lambda rows: rows.where("true"), "availableNow"))
assert bounds() == [before[0], "true", before[2]], bounds()

spark.conf.unset(OTHERS[0])
query = start(blocked, "1 second")
spark.createDataFrame([("more",)], "value string").write.format("kafka").option(
    "kafka.bootstrap.servers", bootstrap).option("topic", source).save()
eventually(lambda: bounds() == ["1048576", *before[1:]], "the batch is being written")
query.stop()
eventually(lambda: bounds() == before, "the limit is as it was")
"""
    source, target = source_of_one_row(broker), new_name("target")
    create_topic(broker.bootstrap, target, 1)
    os.mkfifo(tmp_path / "pipe")
    paths = [str(tmp_path / "c"), str(tmp_path / "pipe")]
    done = run(program, [server.url, broker.bootstrap, source, target, *paths])
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_secret_stays_on_the_server(tmp_path):
    """As docs/connect.md shows it: a module that only the server has reads its environment, and a file."""
    server_only = tmp_path / "server-only"
    server_only.mkdir()
    (server_only / "orders_sink.py").write_text("""
import os
from pathlib import Path
from sparkonce import ExactlyOnce, KafkaSink
SETTINGS = {
    "bootstrap.servers": os.environ["KAFKA"],
    "security.protocol": "sasl_plaintext",
    "sasl.mechanisms": "PLAIN",
    "sasl.username": Path(os.environ["KAFKA_USER_FILE"]).read_text(),
    "sasl.password": os.environ["KAFKA_PASSWORD"],
}
once = ExactlyOnce(KafkaSink(SETTINGS, topic=os.environ["TARGET"]), checkpoint=os.environ["CHECKPOINT"])
""")
    program = """
import sys
from importlib import import_module
from pyspark.sql import SparkSession
from sparkonce import await_end, read_kafka

def commit(df, batch):
    import_module("orders_sink").once(df, batch)

url, bootstrap, source, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
rows = read_kafka(spark, {"bootstrap.servers": bootstrap}, topics=source).select("value")
writer = rows.writeStream.option("checkpointLocation", checkpoint).foreachBatch(commit)
await_end(writer.trigger(availableNow=True).start())
"""
    user = new_name("user").replace("-", "")
    (tmp_path / "user").write_text(user)
    login = f'{LOGIN}.plain.PlainLoginModule required user_{user}="{PASSWORD}";'
    overrides = {
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": login,
    }
    with Cluster(listeners={"SASL": "SASL_PLAINTEXT"}, overrides=overrides) as cluster:
        source, target = source_of_one_row(cluster), new_name("target")
        create_topic(cluster.bootstrap, target, 1)
        own = {
            "KAFKA": cluster.bootstrap_of("SASL"),
            "KAFKA_USER_FILE": str(tmp_path / "user"),
            "KAFKA_PASSWORD": PASSWORD,
            "TARGET": target,
            "CHECKPOINT": str(tmp_path / "c"),
            "PYTHONPATH": os.pathsep.join((str(server_only), path_of_tests()["PYTHONPATH"])),
        }
        with ConnectServer(tmp_path / "server", env=own) as server:
            done = run(program, [server.url, cluster.bootstrap, source, str(tmp_path / "c")])
        assert done.returncode == 0, done.stderr
        assert values(cluster, target) == [b"v"]
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "user"}
    leaks = [path for path, content in files.items() if user.encode() in content or PASSWORD.encode() in content]
    assert leaks == [], "a secret is in a log or a checkpoint"
    assert user not in done.stderr + done.stdout


@pytest.mark.slow
def test_a_query_outlives_its_client_and_is_taken_over_by_a_second_one(broker, server, tmp_path):
    with Job(broker.bootstrap, tmp_path / "job", rows=1_200, rows_per_batch=300, slots=2) as job:
        first = hold_at("WRITING", job, batch=0)
        client = Client(server, [job], tmp_path / "first.log")
        first.wait(client.check)
        client.kill()

        second = hold_at("DECIDING", job, batch=1)
        first.release()
        old = second.wait()
        assert job.decided() == 0, "the query went on without its client"

        taking_over = Client(server, [job], tmp_path / "second.log")
        job.gate.wait_for(lambda: job.gate.arrivals[-1].pid != old.pid, "another process has begun", taking_over.check)
        second.release()
        taking_over.finish()
        assert job.gate.last(REFUSED) is None
        assert [one.told["failed"] for one in job.gate.at(ENDED)] == [""]
        assert job.judge() == ""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "spark.stop()"], ids=["timeout", "stop"])
def test_a_query_ends_with_its_session_and_continues_in_another_one(broker, tmp_path, end):
    """Its client exits, and another one attaches to the session. Spark closes a session that has had no request."""
    settings = {
        "spark.connect.session.manager.defaultSessionTimeout": "30s",
        "spark.connect.session.manager.maintenanceInterval": "1s",
        "spark.log.level": "INFO",
    }
    attach = f"""
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
assert spark.streams.active[0].isActive
{end}
"""
    source, target = source_of_one_row(broker), new_name("target")
    create_topic(broker.bootstrap, target, 1)
    arguments = [broker.bootstrap, source, target, str(tmp_path / "c")]
    server = ConnectServer(tmp_path / "server", spark=settings)
    try:
        started = run(f"{COPY}\nprint(spark.session_id)", [server.url, *arguments, "1 second"])
        assert started.returncode == 0, started.stderr
        eventually(lambda: values(broker, target) == [b"v"], "the query goes on without its client")
        attached = run(attach, [f"{server.url}/;session_id={started.stdout.strip()}"])
        assert attached.returncode == 0, attached.stderr
        eventually(lambda: "Stopping the query with id" in server.log.read_text(), "the session is closed")

        produce(broker.bootstrap, source, [{"value": b"w", "partition": 0}], timeout_s=LIMIT_S)
        done = run(COPY_AND_WAIT, [server.url, *arguments, "availableNow"])
        assert done.returncode == 0, done.stderr
        assert values(broker, target) == [b"v", b"w"]
    finally:
        server.kill()


@pytest.mark.slow
def test_a_process_that_lost_its_server_does_not_commit_after_a_newer_claim(broker, tmp_path):
    with (
        Job(broker.bootstrap, tmp_path / "job", rows=600, rows_per_batch=300, slots=2) as job,
        ConnectServer(tmp_path / "first") as first,
    ):
        late = hold_at("DECIDING", job, batch=1)
        client = Client(first, [job], tmp_path / "first.log")
        orphan = late.wait(client.check)
        first.kill(spare=orphan.pid)
        client.kill()

        with ConnectServer(tmp_path / "second") as second:
            Client(second, [job], tmp_path / "second.log").finish()
            late.release()
            job.gate.wait_for(lambda: job.gate.last(REFUSED) is not None, "the orphan has stopped")
            refused = job.gate.last(REFUSED)
            assert (refused.pid, refused.told["kind"]) == (orphan.pid, "SupersededError")
            assert job.judge() == ""


@pytest.mark.slow
def test_the_quick_start_runs_unchanged_but_for_its_session(broker, tmp_path):
    """In this case, the server is part of the client's program."""
    program = """
import sys
from pyspark.sql import SparkSession, functions as F
from sparkonce import ExactlyOnce, KafkaSink, await_end, read_kafka
bootstrap, jars, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.jars", jars).getOrCreate()
BROKER = {"bootstrap.servers": bootstrap}
orders = read_kafka(spark, BROKER, topics="orders")
order = F.from_json(F.col("value").cast("string"), "customer string, cents long").alias("o")
totals = orders.select(order).groupBy("o.customer").agg(F.count("*").alias("orders"), F.sum("o.cents").alias("cents"))
rows = totals.select(F.col("customer").alias("key"), F.to_json(F.struct("*")).alias("value"))

once = ExactlyOnce(KafkaSink(BROKER, topic="totals"), checkpoint=checkpoint)
query = once.start(rows, output_mode="update", trigger={"availableNow": True})
await_end(query)
"""
    for topic in ("orders", "totals"):
        create_topic(broker.bootstrap, topic, 1)
    orders = [b'{"customer": "ada", "cents": 5}', b'{"customer": "ada", "cents": 7}']
    produce(broker.bootstrap, "orders", [{"value": one, "partition": 0} for one in orders], timeout_s=LIMIT_S)
    jars = ",".join(map(str, spark_kafka_jars()))
    done = run(program, [broker.bootstrap, jars, str(tmp_path / "checkpoint")])
    assert done.returncode == 0, done.stderr
    found = [(record.key, record.value) for record in read_committed(broker.bootstrap, "totals")]
    assert found == [(b"ada", b'{"customer":"ada","orders":2,"cents":12}')]


def source_of_one_row(broker: Cluster) -> str:
    create_topic(broker.bootstrap, source := new_name("source"), 1)
    produce(broker.bootstrap, source, [{"key": b"k", "value": b"v", "partition": 0}], timeout_s=LIMIT_S)
    return source


def values(broker: Cluster, topic: str) -> list[bytes | None]:
    return [record.value for record in read_committed(broker.bootstrap, topic)]


def environment(first: Path | None = None) -> dict[str, str]:
    """Returns the environment of a program, with a folder of packages that comes before all others."""
    path = os.pathsep.join(filter(None, (str(first or ""), path_of_tests()["PYTHONPATH"])))
    return {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def run(program: str, arguments: list[str], first: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program from standard input. PySpark 4.2 takes one of ``python -c`` for doctests, which need a server."""
    done = subprocess.run(
        [sys.executable, "-", *arguments],
        input=program,
        env=environment(first),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return run(program, arguments, first) if any(text in done.stderr for text in SPARK_STOPS) else done
