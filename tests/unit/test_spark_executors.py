from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

import sparkonce
from sparkonce import FilesSink, KafkaSink, MySQLSink, PostgresSink, RedisSink, WriteAheadSink
from sparkonce.errors import OutageError, PreflightError, PrepareError
from sparkonce.needs import WorkerNeeds, addresses_of, files_of
from sparkonce.sinks.files.names import ID
from sparkonce.spark.python_worker import checked_first, needs_of
from sparkonce.spark.shipped import ADDRESS, FILE, NEXT_STEPS, PACKAGE, Needs, build_of, lacking
from sparkonce.spark.show.failures import short_error
from sparkonce.spark.start.executors import _judge
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce.write_ahead import Applies
from sparkonce_rabbitmq import RabbitMQ, RabbitMQStreamSink

SOURCES = Path(sparkonce.__file__).parent


def needs(**more: Any) -> Needs:
    return {**needs_of((), "local[2]"), **more}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("one:1, two,[::1]:3", (("one", 1), ("two", 9092), ("::1", 3))),
        ("SASL_SSL://one:1,PLAINTEXT://two", (("one", 1), ("two", 9092))),
        ("redis://user:secret@one/7", (("one", 9092),)),
        ("one:port", ()),
        ("", ()),
    ],
)
def test_addresses_are_read_from_what_clients_take(text, found):
    assert addresses_of(text, 9092) == found


def test_the_files_are_those_of_settings_that_are_given(tmp_path):
    assert files_of({"ca": "/ca.pem", "key": ""}, ("ca", "key", "cert")) == (("ca", "/ca.pem"),)

    sink = WriteAheadSink(print, applies=Applies.NEITHER)
    sink.use_checkpoint(HdfsFiles("hdfs://name:9000/checkpoint"))
    assert sink.worker_needs() == WorkerNeeds(modules=("hdfs_native",))

    sink = FilesSink(tmp_path)
    assert sink.worker_needs().files == ()
    sink.preflight("0" * 12, None)
    assert sink.worker_needs().files == (("path", str(tmp_path / ID)),)


KAFKA = {"bootstrap.servers": "one:1,two:2"}
MYSQL = {"database": "shop"}


@pytest.mark.parametrize(
    ("sink", "found"),
    [
        (KafkaSink({**KAFKA, "ssl.ca.location": "/ca.pem"}), (("ssl.ca.location",), (("one", 1), ("two", 2)))),
        (PostgresSink("host=db,db2 sslrootcert=/ca.pem", table="t"), (("sslrootcert",), (("db", 5432), ("db2", 5432)))),
        (PostgresSink("host=db,db2 port=1,2 sslrootcert=system", table="t"), ((), (("db", 1), ("db2", 2)))),
        (PostgresSink("host=/run/postgresql", table="t"), ((), ())),
        (PostgresSink("service=shop", table="t"), ((), ())),
        (MySQLSink({**MYSQL, "host": "db", "port": 7, "ssl_ca": "/ca.pem"}, table="t"), (("ssl_ca",), (("db", 7),))),
        (MySQLSink({**MYSQL, "unix_socket": "/run/db"}, table="t"), ((), ())),
        (MySQLSink({**MYSQL, "read_default_file": "/my.cnf"}, table="t"), (("read_default_file",), ())),
        (RedisSink("rediss://u:p@one", options={"ssl_ca_certs": "/c"}), (("ssl_ca_certs",), (("one", 6379),))),
        (RedisSink("redis://one", sentinels=[("two", 2)], service="main"), ((), (("two", 2),))),
        (RedisSink("unix:///run/redis"), ((), ())),
        (FilesSink("hdfs://name:9000/out"), ((), (("name", 9000),))),
        (FilesSink("hdfs://service/out"), ((), ())),
        (FilesSink("s3://bucket"), ((), ())),
        (WriteAheadSink(print, applies=Applies.NEITHER), ((), ())),
    ],
)
def test_what_each_sinks_writers_need(sink, found):
    told = sink.worker_needs()
    assert (tuple(name for name, _ in told.files), told.addresses) == found
    assert lacking(needs(modules=told.modules)) == []
    assert "secret" not in repr(told)


def test_the_package_of_a_sink_is_asked_for_in_the_drivers_build():
    sink = RabbitMQStreamSink(RabbitMQ(), stream="s")
    assert needs_of([sink], "local[2]")["builds"] == {"sparkonce_rabbitmq": build_of("sparkonce_rabbitmq")}


def test_a_proxy_of_the_environment_is_not_passed_by(monkeypatch):
    sink = FilesSink("s3://bucket", store_options={"endpoint_url": "https://store", "verify": "/ca.pem"})
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert sink.worker_needs() == WorkerNeeds(
        modules=("boto3",), files=(("verify", "/ca.pem"),), addresses=(("store", 443),)
    )
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    assert sink.worker_needs().addresses == ()


def test_a_worker_that_has_everything_lacks_nothing():
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = ("127.0.0.1", server.getsockname()[1])
        all_of_it = needs(files=[("ca", __file__)], addresses=[("kafka", (("127.0.0.1", 1), here))])
        assert lacking(all_of_it) == []


@pytest.mark.parametrize(
    ("changed", "kind", "text"),
    [
        ({"version": "0.0.9"}, PACKAGE, f"sparkonce {sparkonce.__version__} (build "),
        ({"build": "0123"}, PACKAGE, f"and the driver has sparkonce {sparkonce.__version__} (build 0123)"),
        ({"builds": {"sparkonce_rabbitmq": "0" * 12}}, PACKAGE, "sparkonce_rabbitmq (build "),
        ({"builds": {"no_package": "0" * 12}}, PACKAGE, f"{sys.executable} cannot import no_package (ModuleNotFound"),
        ({"modules": ["no_client"]}, PACKAGE, f"{sys.executable} cannot import no_client (ModuleNotFoundError: No"),
        ({"files": [("ca", "/no/ca.pem")]}, FILE, "ca='/no/ca.pem' cannot be read (No such file or directory)"),
        ({"addresses": [("kafka", (("127.0.0.1", 1),))]}, ADDRESS, "sink 'kafka' is not reached at 127.0.0.1:1 (Con"),
    ],
)
def test_each_lack_of_a_worker_is_named(changed, kind, text):
    [(found, told)] = lacking(needs(**changed))
    assert found == kind
    assert text in told


def on_a_worker(code: str, *, path: Path | None = None, more: Needs | None = None) -> str:
    """Runs code in a new process that has the pickled function as ``write`` and no or another sparkonce.

    Returns its output.
    """
    write = cloudpickle.dumps(lambda rows: iter([sum(rows)]))
    pickled = cloudpickle.dumps(checked_first(write, more or needs(modules=[])))
    before = "sys.modules['sparkonce'] = None" if path is None else f"sys.path.insert(0, {str(path)!r})"
    code = f"import sys, pickle; {before}; write = pickle.loads({pickled!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


@pytest.mark.parametrize("there", [None, "other", "same"])
def test_a_task_checks_its_worker_before_anything_of_ours_is_unpickled(there, tmp_path):
    path = None
    if there is not None:
        path = tmp_path
        shutil.copytree(SOURCES, tmp_path / "sparkonce", ignore=shutil.ignore_patterns("__pycache__"))
    if there == "other":
        (tmp_path / "sparkonce" / "executor.py").write_text("")
        (tmp_path / "sparkonce" / "spark" / "shipped.py").unlink()
    said = on_a_worker("print(list(write([1, 2])))", path=path)
    if there == "same":
        assert said == "[3]\n"
        return
    error = short_error(RuntimeError(said))
    assert type(error) is PrepareError
    assert error.message.startswith(f"Executor on host {socket.gethostname()!r}: ")
    assert f"the driver has sparkonce {sparkonce.__version__}" in error.message
    assert (f"(build {build_of('sparkonce')})" in error.message) == (there == "other")
    assert error.next_step == NEXT_STEPS[PACKAGE]


def test_a_worker_process_is_checked_once_for_each_query(tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text("")
    more = needs(modules=[], files=[("ca", str(file))])
    code = f"import pathlib; print(list(write([1]))); pathlib.Path({str(file)!r}).unlink(); print(list(write([2])))"
    assert on_a_worker(code, path=SOURCES.parent, more=more) == "[1]\n[2]\n"
    assert "PrepareError: Executor" in on_a_worker(code, path=SOURCES.parent, more=more)


@pytest.mark.parametrize(("modules", "kind"), [([], OutageError), (["no_client"], PrepareError)])
def test_a_task_whose_worker_only_lacks_reach_says_so_as_of_an_outage(modules, kind):
    more = needs(modules=modules, addresses=[("orders", (("127.0.0.1", 1), ("127.0.0.1", 2)))])
    error = short_error(RuntimeError(on_a_worker("list(write([1]))", path=SOURCES.parent, more=more)))
    assert type(error) is kind
    assert error.message.startswith(f"Executor on host {socket.gethostname()!r}: ")
    assert "sink 'orders' is not reached at 127.0.0.1:1 (Connection refused), 127.0.0.1:2 (Conn" in error.message
    assert error.next_step == NEXT_STEPS[PACKAGE if modules else ADDRESS]


def test_what_the_driver_used_on_its_own_machine_is_not_asked_for_there():
    sink = KafkaSink({**KAFKA, "ssl.ca.location": "/ca.pem"})
    for master in ("local", "local[2]", "local[*, 3]"):
        assert (needs_of([sink], master)["files"], needs_of([sink], master)["addresses"]) == ([], [])
    for master in ("local-cluster[2,1,1024]", "spark://master:7077", "yarn"):
        there = needs_of([sink], master)
        assert there["files"] == [("ssl.ca.location", "/ca.pem")]
        assert there["addresses"] == [("kafka", (("one", 1), ("two", 2)))]


def test_all_hosts_with_a_lack_are_told_and_how_to_ship():
    reports = [("b", PACKAGE, "no boto3"), ("a", FILE, "no ca"), ("a", PACKAGE, "no boto3"), ("c", "", "")]
    with pytest.raises(PreflightError) as refused:
        _judge(reports * 2)
    assert refused.value.message == (
        "Executors are not as the driver needs them. On host 'a': no ca; no boto3; on host 'b': no boto3."
    )
    assert refused.value.next_step == f"{NEXT_STEPS[PACKAGE]} {NEXT_STEPS[FILE]}"
    assert refused.value.details["hosts"] == {"a": ["no ca", "no boto3"], "b": ["no boto3"]}
    with pytest.raises(PreflightError, match="on host 'c': x; on 2 more hosts"):
        _judge([(host, FILE, "x") for host in "abcde"])
    _judge([("c", "", "")])
