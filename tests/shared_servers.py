"""Servers that the tests of a process share: each is started for the first test that needs it, and ends with us.

A test may kill one and start it again. Whoever uses one begins by emptying it, or has a place of its own there.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from sparkonce.errors import SparkonceError
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.servers.hdfs import Hdfs
from sparkonce.rig.servers.postgres import PostgresServer, find_postgres
from sparkonce.rig.servers.pravega import PravegaServer
from sparkonce.rig.servers.process import find_program
from sparkonce.rig.servers.rabbitmq import RabbitServer
from sparkonce.rig.servers.redis import RedisCluster, RedisServer
from sparkonce.rig.servers.s3 import S3Server, find_versitygw

KILLS_BROKER = pytest.mark.xdist_group("broker to kill")
USES_HDFS = pytest.mark.xdist_group("hdfs")
USES_RABBIT = pytest.mark.xdist_group("rabbitmq")
"""Servers that take seconds to start: one of each for all tests of a process."""

_open = ExitStack()
_pravega = ExitStack()
atexit.register(_open.close)
atexit.register(_pravega.close)


@cache
def postgres_server() -> PostgresServer:
    if find_postgres() is None:
        pytest.skip("PostgreSQL is not installed (apt install postgresql)")
    return _open.enter_context(PostgresServer())


@cache
def redis_server() -> RedisServer:
    """Starts the one for tests that change none of its settings."""
    if find_program("redis-server") is None:
        pytest.skip("redis-server is not installed")
    return _open.enter_context(RedisServer(_new_folder("redis") / "data"))


@cache
def redis_cluster() -> RedisCluster:
    if find_program("redis-server") is None:
        pytest.skip("redis-server is not installed")
    return _open.enter_context(RedisCluster(_new_folder("cluster")))


@cache
def rabbit_server() -> RabbitServer:
    """Starts one for tests that make streams and queues of their own. Mark them with `USES_RABBIT`.

    Its users are ``guest``, ``reader`` and ``writer``, who may do just that; ``guest`` alone sees the host ``other``.
    """
    if not RabbitServer.is_installed():
        pytest.skip("rabbitmq-server is not installed (apt install --no-install-recommends rabbitmq-server)")
    server = RabbitServer(
        _new_folder("rabbitmq") / "data",
        users={"reader": "reads", "writer": "writes"},
        permissions=[("reader", "/", "", "", ".*"), ("writer", "/", "", ".*", "")],
        virtual_hosts=["other"],
    )
    return _open.enter_context(server)


@cache
def s3_server() -> S3Server:
    if find_versitygw() is None:
        pytest.skip("no versitygw: go install github.com/versity/versitygw/cmd/versitygw@v1.8.0")
    return _open.enter_context(S3Server(_new_folder("s3") / "versitygw"))


@cache
def broker_to_kill() -> Cluster:
    """Besides the fixture ``broker``, which nobody kills. For tests that are marked with `KILLS_BROKER`."""
    return _open.enter_context(Cluster(overrides={"auto.create.topics.enable": "false"}))


@cache
def hdfs_server() -> Hdfs:
    """It looks at users and permissions; who started it may do everything."""
    try:
        server = Hdfs(_new_folder("hdfs") / "data", permissions=True)
    except SparkonceError as error:
        pytest.skip(f"HDFS cannot be had here: {error.message}")
    return _open.enter_context(server)


@cache
def pravega_server() -> PravegaServer:
    """Starts the only one that a machine can have. For tests that use Spark's session: they are of one process.

    It ends with the module (`end_pravega`): its threads look for work all the time, and take most of a core.
    """
    try:
        server = PravegaServer(_new_folder("pravega") / "settings")
    except SparkonceError as error:
        pytest.skip(f"Pravega cannot be had here: {error.message}")
    return _pravega.enter_context(server)


def end_pravega() -> None:
    """Ends the server, if there is one; the next test that asks for it gets another one."""
    _pravega.close()
    pravega_server.cache_clear()


def _new_folder(name: str) -> Path:
    folder = tempfile.mkdtemp(prefix=f"sparkonce-{name}-")
    _open.callback(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
