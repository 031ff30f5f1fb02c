"""The systems that queries write to: for each the sink's arguments, and a witness that asks the system itself."""

from __future__ import annotations

import abc
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from mariadb_witness import Witness
from postgres_witness import ask, prepared, staging_tables
from redis_servers import own, witness
from s3_bucket import Bucket
from sparkonce.rig.servers.postgres import PostgresServer
from sparkonce.rig.servers.redis import RedisServer
from sparkonce.sinks.redis.names import IDENTITY

Rows = Counter[tuple[str, int]]
"""How often each row, known by its id, stands somewhere under the number of a batch."""

COLUMNS = "id varchar(20), batch bigint, ending varchar(2), amount int"


class Target(abc.ABC):
    """A place in a system for one query.

    Attributes:
        kind: The sink's class.
        sink: Its arguments.
    """

    kind: str
    sink: dict[str, Any]

    @abc.abstractmethod
    def visible(self) -> Rows:
        """Reads what every reader finds there now."""

    @abc.abstractmethod
    def open(self, query: str) -> list[str]:
        """Asks the system what it holds of the query that is neither committed nor aborted."""


class MySQL(Target):
    kind = "MySQLSink"

    def __init__(self, witness: Witness, table: str, **more: Any) -> None:
        self.witness = witness
        self.sink = {"settings": witness.settings, "table": table, **more}
        witness.run(f"CREATE TABLE {table} ({COLUMNS}) ENGINE=InnoDB")

    def visible(self) -> Rows:
        return Counter(self.witness.rows(f"SELECT id, batch FROM {self.sink['table']}"))  # noqa: S608

    def open(self, query: str) -> list[str]:
        staged = self.witness.rows(
            "SELECT TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
            "AND TABLE_NAME LIKE 'sparkonce\\_stage\\_%'"
        )
        return [name for name in [*(str(one) for (one,) in staged), *map(str, self.witness.xids())] if query in name]


class Postgres(Target):
    kind = "PostgresSink"

    def __init__(self, server: PostgresServer, table: str, **more: Any) -> None:
        self.server = server
        self.sink = {"conninfo": server.conninfo(), "table": table, **more}
        ask(server, f"CREATE TABLE {table} ({COLUMNS})")

    def visible(self) -> Rows:
        return Counter(ask(self.server, f"SELECT id, batch FROM {self.sink['table']}"))  # noqa: S608

    def open(self, query: str) -> list[str]:
        found = [*prepared(self.server), *staging_tables(self.server)]
        return [name for name in found if query in name]


class Redis(Target):
    """Counts the rows of each batch by their ids, or by the last two digits of these."""

    kind = "RedisSink"

    def __init__(self, server: RedisServer, *, by: str, **more: Any) -> None:
        self.server = server
        self.by = by
        self.prefix = f"by-{by}"
        keys = {"structure": "increment", "key_template": f"{self.prefix}:{{batch}}:{{{by}}}"}
        self.sink = {"url": server.url, "prefix": self.prefix, **keys, **more}

    def visible(self) -> Rows:
        with witness(self.server) as client:
            keys = [key.decode() for key in client.scan_iter(f"{self.prefix}:*", count=1_000)]
            counted = {tuple(key.split(":")[1:]): int(client.get(key)) for key in keys}
        return Counter({(row, int(batch)): count for (batch, row), count in counted.items()})

    def open(self, query: str) -> list[str]:
        with witness(self.server) as client:
            staged = {key.decode() for key in client.scan_iter(count=1_000) if own(key)} - {IDENTITY}
        return [key for key in staged if query in key and not key.endswith(":ledger")]


class Files(Target):
    kind = "FilesSink"

    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder = folder
        self.sink = {"path": str(folder), **more}

    def visible(self) -> Rows:
        format = self.sink.get("format", "parquet")  # noqa: A001 - the sink's word
        paths = [str(path) for path in self.folder.rglob(f"*.{format}*") if ".sparkonce" not in path.parts]
        table = ds.dataset(paths, format=format).to_table().to_pylist() if paths else []
        return Counter((row["id"], row["batch"]) for row in table)

    def open(self, query: str) -> list[str]:
        hidden = (self.folder / ".sparkonce").rglob("*")
        return [str(path) for path in hidden if path.is_file() and path.name != "id"]


class S3(Target):
    kind = "FilesSink"

    def __init__(self, bucket: Bucket, **more: Any) -> None:
        self.bucket = bucket
        self.sink = {"path": f"s3://{bucket.name}/out", "store_options": bucket.server.settings(), **more}

    def visible(self) -> Rows:
        return Counter(zip(self.bucket.numbers("id"), self.bucket.numbers("batch"), strict=True))  # type: ignore[arg-type]

    def open(self, query: str) -> list[str]:
        return [one["Key"] for one in self.bucket.uploads()]
