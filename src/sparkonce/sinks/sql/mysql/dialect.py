"""MariaDB and MySQL as a dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkonce.sinks.sql.dialect import Dialect
from sparkonce.sinks.sql.mysql import finishing, outcomes, writer
from sparkonce.sinks.sql.mysql.connection import (
    SERVER_ERRORS,
    Connection,
    connect,
    number_of,
    numbered_message,
)
from sparkonce.sinks.sql.mysql.names import stage_table
from sparkonce.sinks.sql.settings import Limits
from sparkonce.sinks.sql.transactions import HandleFields

_LOCK_WAIT_S = 2


def open_session(settings: Mapping[str, Any], program: str, limits: Limits) -> Connection:
    """Connects, and reads the server's identity."""
    connection = connect(settings, program=program, timeout_s=limits.answer_s, lock_wait_s=_LOCK_WAIT_S)
    try:
        return finishing.refreshed(connection)
    except BaseException:
        connection.close()
        raise


MYSQL_DIALECT = Dialect(
    errors=SERVER_ERRORS,
    fields=HandleFields(
        names={"kind": "commit", "name": "transaction", "server": "server", "begun_ms": "begun_ms"},
    ),
    connect=open_session,
    is_idle=lambda connection: bool(connection.open),
    is_alive=Connection.is_alive,
    within=Connection.within,
    refreshed=finishing.refreshed,
    finished=outcomes.finished,
    prepare_error=outcomes.prepare_error,
    list_open=finishing.list_open,
    left_by=lambda *_: [],
    end_writers=finishing.end_writers,
    settle=finishing.settle,
    finish_prepared=finishing.finish_prepared,
    begin=finishing.begin_merge,
    stages=finishing.stages,
    merge=finishing.move,
    commit=finishing.commit_merge,
    drop=finishing.drop,
    roll_back=finishing.roll_back,
    refusers=finishing.refusers,
    settled=finishing.settled,
    refers_to_unit=finishing.refers_to_unit,
    named=finishing.named,
    fragile=None,
    not_committed=finishing.not_committed,
    committed=finishing.committed,
    tidy=finishing.tidy,
    has_transactional_ddl=False,
    take=writer.take,
    give_back=lambda _to, connection: connection.close(),
    open=writer.open_copy,
    rows=writer.TableRows,
    execute=Connection.run,
    prepare=writer.prepare,
    staging_table=lambda name: stage_table(name.copy),
    is_about_row=lambda error: number_of(error) in outcomes.ABOUT_ROWS,
    message=numbered_message,
)
