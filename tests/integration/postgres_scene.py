from __future__ import annotations

from typing import Any

from sparkonce.sinks.sql.postgres.sink import PostgresSink
from sparkonce_lab.systems.postgres import PostgresSystem


def new_sink(postgres: PostgresSystem, table: str = "t", *, user: str = "postgres", **more: Any) -> PostgresSink:
    return PostgresSink(postgres.server.conninfo(user=user), table=table, **more)
