"""The clients of a checkpoint on HDFS: what a Python worker gets, and how each client reports what is missing."""

from __future__ import annotations

import errno
import pickle
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import pytest
from hdfs_native import Client

from jvm import bare_jvm, hadoop_conf, hadoop_files
from shared_servers import USES_HDFS, hdfs_server
from sparkonce.driver.outage import is_store_outage
from sparkonce.errors import ConfigurationError
from sparkonce.spark.checkpoints import hadoop
from sparkonce.spark.checkpoints.hadoop import StoreError
from sparkonce.storage import hdfs
from sparkonce.storage.files import Landed
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce_lab.rig.process import free_port

pytestmark = USES_HDFS

PROVIDERS = "org.apache.hadoop.hdfs.server.namenode.ha"


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    with bare_jvm() as started:
        yield started


def new_url() -> str:
    return f"{hdfs_server().url}/checkpoints/{secrets.token_hex(6)}"


@pytest.mark.slow
def test_a_worker_has_the_drivers_files_settings_and_user(jvm):
    settings = {"dfs.replication": "1", "dfs.ha.namenodes.pair": "nn1", "fs.s3a.secret.key": "very-secret"}
    of_driver = hadoop_files(jvm, new_url(), settings)
    of_driver.put("a/one", b"by the driver")
    pickled = pickle.dumps(of_driver.inside("a").for_workers())
    assert b"very-secret" not in pickled
    program = (
        "import os, pickle, sys\n"
        "files = pickle.loads(sys.stdin.buffer.read())\n"
        "assert files.read('one') == b'by the driver'\n"
        "files.put('two', os.environ['HADOOP_USER_NAME'].encode())"
    )
    subprocess.run([sys.executable, "-c", program], input=pickled, check=True, timeout=120)
    user = jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().getShortUserName()
    assert of_driver.read("a/two") == user.encode()
    assert pickle.loads(pickled)._settings == {"dfs.replication": "1", "dfs.ha.namenodes.pair": "nn1"}  # noqa: S301


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("hadoop.security.authentication", "kerberos"),
        ("dfs.client.failover.proxy.provider.pair", f"{PROVIDERS}.IPFailoverProxyProvider"),
        ("dfs.client.failover.proxy.provider", f"{PROVIDERS}.ObserverReadProxyProvider"),
    ],
)
def test_what_a_worker_cannot_do_as_the_driver_does(jvm, setting, value):
    conf = hadoop_conf(jvm, {setting: value})
    with pytest.raises(ConfigurationError) as refused:
        hadoop.hdfs_files(jvm, conf, "hdfs://pair/checkpoints/a")
    assert f"{setting}={value!r}" in str(refused.value)
    assert "folder=" in str(refused.value.next_step)


@pytest.mark.slow
def test_a_driver_without_the_package(jvm, monkeypatch):
    monkeypatch.setattr(hadoop, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match="needs the package hdfs-native") as refused:
        hadoop_files(jvm, new_url()).for_workers()
    assert "sparkonce[hdfs]" in str(refused.value.next_step)


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Shortens the time for which the client itself retries, which is minutes by default."""
    monkeypatch.setattr(hdfs, "DEADLINE_S", 1.0)


@pytest.mark.usefixtures("impatient")
def test_a_port_that_nobody_listens_on():
    assert_waited_for(HdfsFiles(f"hdfs://127.0.0.1:{free_port()}/a"))


@pytest.mark.usefixtures("impatient")
def test_a_name_node_that_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert_waited_for(HdfsFiles(f"hdfs://127.0.0.1:{silent.getsockname()[1]}/a"))


def assert_waited_for(files: HdfsFiles) -> None:
    with pytest.raises(OSError, match="no answer within 1 s") as caught:
        files.read("one")
    assert is_store_outage(caught.value)
    with pytest.raises(ConfigurationError, match="no answer within 1 s") as refused:
        files.check()
    assert f"checkpoint={files.location!r}" in str(refused.value)


@pytest.mark.parametrize("more", [{}, {"dfs.ha.namenodes.no-such": "nn1"}], ids=["unknown", "without addresses"])
def test_a_name_service_that_the_settings_do_not_have(more):
    files = HdfsFiles("hdfs://no-such/a", {"dfs.nameservices": "pair", **more})
    with pytest.raises(
        OSError, match=r"'no-such' is no name service, for dfs\.ha\.namenodes\.no-such is not set"
    ) as caught:
        files.read("one")
    assert is_store_outage(caught.value), "a name that cannot be resolved may be known later"
    with pytest.raises(ConfigurationError, match="hdfs://no-such/a") as refused:
        files.check()
    assert "HADOOP_CONF_DIR" in str(refused.value.next_step)


@pytest.mark.slow
def test_a_name_service_that_the_sessions_settings_do_not_have(jvm):
    with pytest.raises(StoreError, match="UnknownHostException: no-such"):
        hadoop_files(jvm, "hdfs://no-such/a")


@pytest.mark.usefixtures("impatient")
def test_a_name_node_without_a_port_listens_on_hadoops(monkeypatch):
    url, port = f"hdfs://127.0.0.1/checkpoints/{secrets.token_hex(6)}", hdfs_server().port
    monkeypatch.setattr(hdfs, "_PORT", port)
    assert HdfsFiles(url).put("one", b"x") == Landed()
    assert HdfsFiles(url.replace("127.0.0.1", f"127.0.0.1:{port}")).read("one") == b"x"


def test_what_a_dead_writer_has_left_open_hinders_nobody():
    """The name node keeps its lease for another hour, but the temporary name is used by nobody else."""
    url = new_url()
    program = (
        "import sys\nfrom hdfs_native import Client, WriteOptions\n"
        f"file = Client({hdfs_server().url!r}).create({url.removeprefix(hdfs_server().url) + '/a/.dead.tmp'!r},"
        " WriteOptions(overwrite=False, create_parent=True))\n"
        "file.write(b'half')\nprint('open', flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "open\n"
        writer.kill()
    files, client = HdfsFiles(url), Client(hdfs_server().url)
    folder = files._full("a")
    assert [one.path for one in client.list_status(folder)] == [f"{folder}/.dead.tmp"]
    assert files.put("a/one", b"by another") == Landed()
    assert list(files.names("a")) == ["one"]
    files.tidy("a")
    assert len(list(client.list_status(folder))) == 2, "it might still be written"
    client.set_times(f"{folder}/.dead.tmp", 1, 1)
    files.tidy("a")
    assert [one.path for one in client.list_status(folder)] == [f"{folder}/one"]


@pytest.mark.parametrize("client", [pytest.param("by the JVM", marks=pytest.mark.slow), "native"])
def test_a_store_that_is_paused_for_a_moment_is_waited_for(request, client):
    url = new_url()
    files = HdfsFiles(url) if client == "native" else hadoop_files(request.getfixturevalue("jvm"), url)
    assert files.put("a/0", b"before") == Landed()
    with ThreadPoolExecutor(1) as pool:
        with hdfs_server().paused():
            putting = pool.submit(files.put, "a/1", b"record")
            with pytest.raises(FutureTimeoutError):
                putting.result(0.5)
        assert putting.result(120) == Landed()
    assert files.read("a/1") == b"record"


def test_a_folder_that_is_not_there_is_an_answer():
    files = HdfsFiles(new_url())
    assert (files.read("a/b"), files.exists("a"), files.open("a"), list(files.names("a"))) == (None, False, None, [])
    files.sync("a")
    files.tidy("a")
    files.delete(["a/b"])


def test_a_user_who_may_not_write(monkeypatch):
    url = new_url()
    HdfsFiles(url).put("one", b"x")
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody-else")
    files = HdfsFiles(url)
    with pytest.raises(PermissionError, match="somebody-else") as caught:
        files.put("two", b"x")
    assert caught.value.errno == errno.EACCES
    assert not is_store_outage(caught.value)
    with pytest.raises(ConfigurationError, match="AccessControlException"):
        files.check()
