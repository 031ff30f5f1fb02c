"""MariaDB and MySQL as a dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkonce.sinks.sql.dialect import Dialect, HandleFields
from sparkonce.sinks.sql.mysql import finishing, outcomes, writer
from sparkonce.sinks.sql.mysql.catalog import may_refuse
from sparkonce.sinks.sql.mysql.connection import SERVER_ERRORS, Connection, connect, number_of, numbered_message
from sparkonce.sinks.sql.mysql.settings import stage_table
from sparkonce.sinks.sql.pool import closed_on_error
from sparkonce.sinks.sql.settings import Limits

_LOCK_WAIT_S = 2


def open_session(settings: Mapping[str, Any], program: str, limits: Limits) -> Connection:
    """Connects, and reads the server's identity."""
    connection = connect(settings, program=program, timeout_s=limits.answer_s, lock_wait_s=_LOCK_WAIT_S)
    with closed_on_error(connection):
        return finishing.refreshed(connection)


MYSQL_DIALECT = Dialect(
    errors=SERVER_ERRORS,
    fields=HandleFields(names={"kind": "commit", "name": "transaction", "server": "server", "begun_ms": "begun_ms"}),
    connect=open_session,
    is_idle=Connection.is_idle,
    within=Connection.within,
    refreshed=finishing.refreshed,
    finished=outcomes.finished,
    prepare_error=outcomes.prepare_error,
    list_open=finishing.list_open,
    end_writers=finishing.end_writers,
    settle=finishing.settle,
    finish_prepared=finishing.finish_prepared,
    begin=finishing.begin_merge,
    stages=finishing.stages,
    merge=finishing.move,
    commit=finishing.commit_merge,
    drop=finishing.drop,
    roll_back=finishing.roll_back,
    refusers=lambda connection, _, stage, tables: may_refuse(connection, stage.target, stage.columns, tables),
    settled=finishing.settled,
    refers_to_unit=finishing.refers_to_unit,
    named=finishing.named,
    not_committed=finishing.not_committed,
    committed=lambda connection, prefix, query, _: finishing.markers_of(connection, prefix, query),
    tidy=finishing.tidy,
    has_transactional_ddl=False,
    take=writer.take,
    open=writer.open_copy,
    rows=writer.TableRows,
    prepare=writer.prepare,
    staging_table=lambda name: stage_table(name.copy),
    row_refusal=lambda error: numbered_message(error) if number_of(error) in outcomes.ABOUT_ROWS else "",
)
