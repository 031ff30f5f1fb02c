"""PostgreSQL as a dialect."""

from __future__ import annotations

import psycopg

from sparkonce.sinks.sql.dialect import Dialect, HandleFields
from sparkonce.sinks.sql.postgres import catalog, connection, finishing, outcomes, writer
from sparkonce.sinks.sql.postgres.settings import BackendName, staging_table
from sparkonce.sinks.sql.settings import quoted

POSTGRES_DIALECT = Dialect(
    errors=(psycopg.Error,),
    fields=HandleFields(
        names={"kind": "commit", "name": "name", "server": "system", "database": "database", "schema": "commits"},
        session=BackendName.parse,
    ),
    connect=lambda conninfo, _program, _limits: connection.connect(conninfo),
    is_idle=connection.is_idle,
    within=connection.within,
    finished=outcomes.finished,
    prepare_error=outcomes.prepare_error,
    list_open=finishing.list_open,
    transactions_of=finishing.transactions_of,
    end_writers=finishing.end_writers,
    finish_prepared=finishing.finish_prepared,
    begin=finishing.begin_merge,
    stages=finishing.stages,
    merge=finishing.move,
    commit=finishing.commit_merge,
    drop=finishing.drop,
    refusers=lambda session, location, stage, tables: catalog.may_refuse(
        session, stage.target, stage.columns, [quoted(location.schema, table) for table in tables]
    ),
    settled=finishing.settled,
    refers_to_unit=finishing.refers_to_unit,
    named=catalog.named,
    not_committed=finishing.not_committed,
    committed=finishing.committed,
    tidy=finishing.tidy,
    has_transactional_ddl=True,
    take=lambda copy: connection.pool_of_process(copy.conninfo).take(),
    give_back=lambda conninfo, session: connection.pool_of_process(conninfo).give_back(session),
    open=writer.open_copy,
    rows=writer.CopyRows,
    prepare=writer.prepare,
    staging_table=staging_table,
    row_refusal=outcomes.row_refusal,
)
