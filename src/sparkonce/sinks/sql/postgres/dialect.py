"""PostgreSQL as a dialect."""

from __future__ import annotations

import psycopg

from sparkonce.sinks.sql.dialect import Dialect
from sparkonce.sinks.sql.postgres import catalog, connection, finishing, outcomes, writer
from sparkonce.sinks.sql.postgres.names import BackendName, staging_table
from sparkonce.sinks.sql.transactions import HandleFields

POSTGRES_DIALECT = Dialect(
    errors=(psycopg.Error,),
    fields=HandleFields(
        names={"kind": "commit", "name": "name", "server": "system", "database": "database", "schema": "commits"},
        session=BackendName.parse,
    ),
    connect=lambda conninfo, _program, _limits: connection.connect(conninfo),
    is_idle=connection.is_idle,
    is_alive=connection.is_alive,
    within=connection.within,
    refreshed=lambda session: session,
    finished=outcomes.finished,
    prepare_error=outcomes.prepare_error,
    list_open=finishing.list_open,
    left_by=finishing.left_by,
    end_writers=finishing.end_writers,
    settle=None,
    finish_prepared=finishing.finish_prepared,
    begin=finishing.begin_merge,
    stages=finishing.stages,
    merge=finishing.move,
    commit=finishing.commit_merge,
    drop=finishing.drop,
    roll_back=lambda session: session.execute("ROLLBACK"),
    refusers=lambda session, stage: bool(catalog.list_refusers(session, stage.target, stage.columns)),
    settled=finishing.settled,
    refers_to_unit=finishing.refers_to_unit,
    named=catalog.named,
    fragile=lambda session, target: catalog.read_signature(session, target)[1],
    not_committed=finishing.not_committed,
    committed=finishing.committed,
    tidy=finishing.tidy,
    has_transactional_ddl=True,
    take=lambda copy: connection.pool_of_process(copy.conninfo).take(),
    give_back=lambda conninfo, session: connection.pool_of_process(conninfo).give_back(session),
    open=writer.open_copy,
    rows=writer.CopyRows,
    execute=lambda session, statement: session.execute(statement),
    prepare=writer.prepare,
    staging_table=staging_table,
    is_about_row=outcomes.is_about_row,
    message=outcomes.server_message,
)
