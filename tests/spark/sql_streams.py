"""Queries that write to tables of MariaDB and PostgreSQL, and what the servers themselves say of them."""

from __future__ import annotations

import abc
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psycopg import sql

from mariadb_witness import Witness
from postgres_witness import ask, prepared
from spark.faults import HALFWAY, Watched
from spark.harness import Job
from sparkonce.sinks.mysql.names import FORMAT_ID
from sparkonce.testing.servers.postgres import PostgresServer

if TYPE_CHECKING:
    from spark.pipeline import Config
    from sparkonce import KafkaSink
    from sparkonce.spark.views import Sinks

WITHIN = (HALFWAY,)
ROWS_PER_BATCH = 400


def mysql(config: Config, _: KafkaSink) -> Sinks:
    from sparkonce import MySQLSink

    return Watched(MySQLSink(**config.beside), desk=config.desk, points=config.points)


def postgres(config: Config, _: KafkaSink) -> Sinks:
    from sparkonce import PostgresSink

    return Watched(PostgresSink(**config.beside), desk=config.desk, points=config.points)


class TableJob(Job):
    """A query that reads Kafka and writes ids, with the numbers of their batches, to a table of its own.

    Args:
        bootstrap: The broker.
        folder: A new one; its name is the table's.
        batches: How many it has to write.
        unit: See `Config.unit`.
        sink: The sink's arguments.
    """

    def __init__(self, bootstrap: str, folder: Path, batches: int, unit: str, sink: dict[str, Any]) -> None:
        super().__init__(
            bootstrap,
            folder,
            rows=batches * ROWS_PER_BATCH,
            again=False,
            rows_per_batch=ROWS_PER_BATCH,
            plan="spark.plans:stateless",
            points=WITHIN,
            unit=f"spark.sql_streams:{unit}",
            beside={"table": folder.name, **sink},
        )
        self.table = folder.name

    @abc.abstractmethod
    def visible(self) -> Counter[tuple[str, str]]:
        """How often each (id, batch) stands in the table now."""

    @abc.abstractmethod
    def left(self) -> list[str]:
        """What the server holds of the query that is neither committed nor aborted, and its staging tables."""

    @abc.abstractmethod
    def give_up(self) -> int:
        """Rolls back what is prepared, as an operator may; returns how many transactions that was."""


class MySQLJob(TableJob):
    def __init__(self, bootstrap: str, folder: Path, batches: int, witness: Witness, commit: str) -> None:
        super().__init__(bootstrap, folder, batches, "mysql", {"settings": witness.settings, "commit": commit})
        self.witness = witness
        witness.run(f"CREATE TABLE {self.table} (`key` VARCHAR(20), value VARCHAR(20)) ENGINE=InnoDB")

    def visible(self) -> Counter[tuple[str, str]]:
        return Counter(self.witness.rows(f"SELECT `key`, value FROM {self.table}"))  # type: ignore[arg-type]  # noqa: S608

    def left(self) -> list[str]:
        found = self.witness.rows(
            "SELECT TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
            "AND TABLE_NAME LIKE 'sparkonce\\_stage\\_%'"
        )
        named = [str(comment) for (comment,) in found] + [str(xid) for xid in self.witness.xids()]
        return [name for name in named if self.query in name]

    def give_up(self) -> int:
        own = [xid for xid in self.witness.xids() if self.query.encode() in xid]
        for _, length, _, data in self.witness.rows("XA RECOVER"):
            if data in own:
                self.witness.run(f"XA ROLLBACK X'{data[:length].hex()}', X'{data[length:].hex()}', {FORMAT_ID}")
        return len(own)


class PostgresJob(TableJob):
    def __init__(self, bootstrap: str, folder: Path, batches: int, server: PostgresServer, commit: str) -> None:
        super().__init__(bootstrap, folder, batches, "postgres", {"conninfo": server.conninfo(), "commit": commit})
        self.server = server
        ask(server, f"CREATE TABLE {self.table} (key text, value text)")

    def visible(self) -> Counter[tuple[str, str]]:
        return Counter(ask(self.server, f"SELECT key, value FROM {self.table}"))  # type: ignore[arg-type]  # noqa: S608

    def left(self) -> list[str]:
        found = ask(
            self.server,
            "SELECT gid FROM pg_prepared_xacts UNION ALL SELECT relname::text FROM pg_class WHERE relkind = 'r'",
        )
        return [name for (name,) in found if self.query in name]

    def give_up(self) -> int:
        own = [gid for gid in prepared(self.server) if self.query in gid]
        for gid in own:
            ask(self.server, sql.SQL("ROLLBACK PREPARED {}").format(gid))
        return len(own)
