"""Servers that all tests of a process share. Each starts with the first test that needs it, and stops with the process.

A test may kill a server and start it again. A test begins by clearing the server, or uses its own names there.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest
from psycopg import sql

from sparkonce.errors import SparkonceError
from sparkonce.sinks.sql.postgres.connection import close_all
from sparkonce_lab.rig.kafka import Cluster
from sparkonce_lab.rig.servers.hdfs import Hdfs
from sparkonce_lab.rig.servers.mariadb import MariaDBServer
from sparkonce_lab.rig.servers.postgres import PostgresServer
from sparkonce_lab.rig.servers.pravega import PravegaServer
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer
from sparkonce_lab.rig.servers.redis import RedisCluster, RedisServer
from sparkonce_lab.rig.servers.s3 import S3Server
from sparkonce_lab.systems.base import System
from sparkonce_lab.systems.hdfs import HdfsSystem
from sparkonce_lab.systems.mysql import MySQLSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.systems.rabbitmq import RabbitSystem
from sparkonce_lab.systems.redis import RedisSystem
from sparkonce_lab.systems.s3 import S3System

KILLS_BROKER = pytest.mark.xdist_group("broker to kill")
USES_HDFS = pytest.mark.xdist_group("hdfs")
USES_RABBIT = pytest.mark.xdist_group("rabbitmq")
"""Servers that take seconds to start. All tests of a process share one of each."""

needs_postgres, needs_mariadb, needs_redis = (
    pytest.mark.skipif(bool(system.missing()), reason=system.missing())
    for system in (PostgresSystem, MySQLSystem, RedisSystem)
)
"""For tests that start their own server."""

_open = ExitStack()
_pravega = ExitStack()
atexit.register(_open.close)
atexit.register(_pravega.close)


@cache
def postgres_server() -> PostgresServer:
    _skip_without(PostgresSystem)
    return _open.enter_context(PostgresServer())


def new_postgres(server: PostgresServer | None = None) -> PostgresSystem:
    """Returns the shared server, or another one, with everything from earlier tests removed."""
    system = PostgresSystem(server=server or postgres_server(), alone=True, answers_within_s=20.0)
    system.start(Path())
    system.schema = "public"
    close_all()  # idle sessions of an earlier test would still use the role's previous oid after it is recreated
    for gid in system.prepared():
        system.ask(sql.SQL("ROLLBACK PREPARED {}").format(gid))
    for name in system.column("SELECT datname FROM pg_database WHERE datname <> 'postgres' AND NOT datistemplate"):
        # PostgreSQL 12 has no WITH (FORCE), and DROP DATABASE waits 5 s for sessions that are ending.
        system.column("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name)
        system.ask(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))
    for name in system.column(r"SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)'"):
        system.ask(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))
    for name in system.column(r"SELECT rolname FROM pg_roles WHERE rolname !~ '^pg_' AND rolname <> 'postgres'"):
        system.ask(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))
    system.ask("CREATE SCHEMA public; GRANT ALL ON SCHEMA public TO PUBLIC")
    return system


@contextmanager
def postgres_with_passwords() -> Iterator[PostgresSystem]:
    """Starts a separate server, on which the superuser ``etl`` needs a password."""
    with PostgresServer() as server:
        system = new_postgres(server)
        system.ask("CREATE ROLE etl SUPERUSER LOGIN")
        hba = server.folder / "pg_hba.conf"
        hba.write_text("host all postgres 127.0.0.1/32 trust\nhost all etl 127.0.0.1/32 scram-sha-256\n")
        system.ask("SELECT pg_reload_conf()")
        yield system
        system.stop()
        close_all()


@cache
def mariadb_server() -> MariaDBServer:
    _skip_without(MySQLSystem)
    server = MariaDBServer(_new_folder("mariadb") / "data")
    server.start()
    _open.callback(server.kill)
    return server


def new_mariadb(server: MariaDBServer | None = None, *, database: str = "") -> MySQLSystem:
    """Makes an empty database, on the server that all tests of the process share or on another one."""
    system = MySQLSystem(server=server or mariadb_server(), alone=True, answers_within_s=20)
    system.start(Path())
    system.new_database(database)
    return system


@cache
def redis_server() -> RedisServer:
    """Starts the server for tests that do not change its settings."""
    _skip_without(RedisSystem)
    return _open.enter_context(RedisServer(_new_folder("redis") / "data"))


@cache
def redis_cluster() -> RedisCluster:
    _skip_without(RedisSystem)
    return _open.enter_context(RedisCluster(_new_folder("cluster")))


@cache
def rabbit_server() -> RabbitServer:
    """Starts a server for tests that create their own streams and queues. Mark these tests with `USES_RABBIT`.

    Its users are ``guest``, ``reader`` and ``writer``, who may only read or only write. Only ``guest`` can access the
    virtual host ``other``.
    """
    _skip_without(RabbitSystem)
    server = RabbitServer(
        _new_folder("rabbitmq") / "data",
        users={"reader": "reads", "writer": "writes"},
        permissions=[("reader", "/", "", "", ".*"), ("writer", "/", "", ".*", "")],
        virtual_hosts=["other"],
    )
    return _open.enter_context(server)


@cache
def s3_server() -> S3Server:
    _skip_without(S3System)
    return _open.enter_context(S3Server(_new_folder("s3") / "versitygw"))


@cache
def broker_to_kill() -> Cluster:
    """Starts a broker for tests that kill it, and are marked with `KILLS_BROKER`.

    Nobody kills the fixture ``broker``.
    """
    return _open.enter_context(Cluster(overrides={"auto.create.topics.enable": "false"}))


@cache
def hdfs_server() -> Hdfs:
    """Starts HDFS with permission checks. The user who started it is the superuser."""
    _skip_without(HdfsSystem)
    return _open.enter_context(Hdfs(_new_folder("hdfs") / "data", permissions=True))


@cache
def pravega_server() -> PravegaServer:
    """Starts Pravega, which can run only once on a machine. For tests that use Spark's session, which share a process.

    It stops at the end of the module (`end_pravega`), since its threads poll constantly and use most of a core.
    """
    try:
        server = PravegaServer(_new_folder("pravega") / "settings")
    except SparkonceError as error:
        pytest.skip(f"Pravega is not available here: {error.message}")
    return _pravega.enter_context(server)


def end_pravega() -> None:
    """Stops the server if it is running. The next test that needs one gets a new server."""
    _pravega.close()
    pravega_server.cache_clear()


def _skip_without(system: type[System]) -> None:
    if why := system.missing():
        pytest.skip(why)


def _new_folder(name: str) -> Path:
    folder = tempfile.mkdtemp(prefix=f"sparkonce-{name}-")
    _open.callback(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
