"""The three ways of writing: in a branch of XA, to a staging table, or straight into the target."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from sparkonce.protocol.handles import Outcome
from sparkonce.sinks._shared.settings import STAGED, TWO_PHASE
from sparkonce.sinks.mysql import markers
from sparkonce.sinks.mysql.connection import SERVER_ERRORS, Connection, Session
from sparkonce.sinks.mysql.flavours import MARIADB
from sparkonce.sinks.mysql.names import StagingTable, Xid, plain_literal, quote, stage_table
from sparkonce.sinks.mysql.prepared import rollback_prepared
from sparkonce.sinks.mysql.statements import definition
from sparkonce.sinks.mysql.target import checks_of
from sparkonce.sinks.mysql.writer import ABORT_LIMIT_S, MySQLWriter

log = logging.getLogger(__name__)


class TwoPhaseWriter(MySQLWriter):
    """Writes in a branch of XA, together with its marker, and prepares it."""

    def _open(self, connection: Connection) -> None:
        connection.run(f"XA START {self._xid}")
        markers.insert(connection, self._marker)

    def _finish(self, connection: Connection) -> Mapping[str, str | int]:
        connection.run(f"XA END {self._xid}")
        connection.run(f"XA PREPARE {self._xid}")
        return self._marker.fields()

    def _undo(self, connection: Connection) -> None:
        with contextlib.suppress(*SERVER_ERRORS):
            connection.run(f"XA END {self._xid}")
        session = Session(connection=connection, flavour=self._flavour, server=self._how.server)
        done = rollback_prepared(session, self._name, time.monotonic() + ABORT_LIMIT_S)
        if done.outcome is not Outcome.ABORTED:
            log.warning("%s is left to the driver: %s", self._name, done.reason)

    @property
    def _xid(self) -> Xid:
        return Xid.of(self._name)

    @property
    def _marker(self) -> markers.Marker:
        return markers.Marker(name=self._name, kind=TWO_PHASE, server=self._how.server, begun_ms=int(self._begun_ms))


class StagedWriter(MySQLWriter):
    """Writes to a staging table of its own, and commits that."""

    def _open(self, connection: Connection) -> None:
        """Does nothing: the first rows, which have the columns, make the table."""

    def _first_rows(self, connection: Connection) -> None:
        if self._how.rules.delete_when:  # a row that deletes has a key, and may have nothing else
            keys = {key.lower() for key in self._how.key_columns}
            self._bound = [one if one.name.lower() in keys else replace(one, nullable=True) for one in self._bound]
        parts = [definition(column) for column in self._bound]
        if self._flavour is MARIADB:
            checks = checks_of(connection, self._how.table, [column.name for column in self._bound])
            parts += [f"CONSTRAINT {quote(name)} CHECK ({condition})" for name, condition in checks.items()]
        columns = ", ".join(parts)
        stage = StagingTable(
            name=self._name,
            begun_ms=int(self._begun_ms),
            table=self._how.table,
            keys=self._how.key_columns,
            rules=self._how.rules,
        )
        connection.run(
            f"CREATE TABLE {quote(stage_table(self._name.copy))} "
            f"(sparkonce_row BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, {columns}) "
            f"ENGINE=InnoDB COMMENT={plain_literal(stage.comment())}"
        )
        connection.run("START TRANSACTION")

    def _into(self) -> tuple[str, bool]:
        return stage_table(self._name.copy), False

    def _finish(self, connection: Connection) -> Mapping[str, str | int]:
        connection.run("COMMIT")
        marker = markers.Marker(name=self._name, kind=STAGED, server=self._how.server, begun_ms=int(self._begun_ms))
        return marker.fields()

    def _undo(self, connection: Connection) -> None:
        connection.run("ROLLBACK")
        connection.run(f"DROP TABLE IF EXISTS {quote(stage_table(self._name.copy))}")


class DirectWriter(MySQLWriter):
    """Writes into the target, and commits at prepare: below EXACTLY_ONCE."""

    def _open(self, connection: Connection) -> None:
        connection.run("START TRANSACTION")

    def _finish(self, connection: Connection) -> Mapping[str, str | int]:
        connection.run("COMMIT")
        return {}
