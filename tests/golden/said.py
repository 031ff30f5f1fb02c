"""What the servers themselves hold of the golden query: names, markers, ledgers and notes, as plain values."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hdfs_native import Client

from golden.places import Servers
from golden.story import Story
from postgres_witness import ask, prepared
from redis_servers import Everywhere
from sparkonce.protocol.view import LogView
from sparkonce.sink import Owner, WriterContext
from sparkonce.testing.kafka import list_transactions


def said_by(servers: Servers, story: Story) -> dict[str, Any]:
    """Asks each system."""
    return {
        "kafka": {
            name: {"state": one.state, "producer_id": one.producer_id, "epoch": one.producer_epoch}
            for name, one in sorted(list_transactions(servers.kafka.bootstrap).items())
        },
        "postgres": _postgres(servers, story),
        "mysql": _mysql(servers),
        "redis": {name: _redis(everywhere) for name, everywhere in servers.everywhere().items()},
        "s3": _s3(servers),
        "hdfs": sorted(
            one.path for one in Client(servers.hdfs.url).list_status("/out", recursive=True) if not one.isdir
        ),
        "delta": _delta(servers.folder / "delta" / "_delta_log"),
        "iceberg": _iceberg(servers),
    }


def _postgres(servers: Servers, story: Story) -> dict[str, Any]:
    server = servers.postgres
    tables = ask(
        server,
        "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_name LIKE 'sparkonce%' ORDER BY table_schema, table_name, ordinal_position",
    )
    marked = "SELECT name, prefix, query, batch, state, target FROM {}.sparkonce_commits ORDER BY name"
    with _writing(servers, story):
        sessions = ask(server, "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'so.%'")
    return {
        "gids": prepared(server),
        "sessions": sorted(name for (name,) in sessions),
        "tables": [list(one) for one in tables],
        "markers": {
            schema: [list(row) for row in ask(server, marked.format(schema))]  # type: ignore[arg-type]
            for schema in ("public", "markers")
        },
    }


@contextmanager
def _writing(servers: Servers, story: Story) -> Iterator[None]:
    """A copy that is still at it."""
    (run,) = story.log().read(LogView()).runs[-1:]
    sink = story.sinks()["postgres.two_phase"]
    owner = Owner(query=story.short_query, token=run.token, facts=dict(dict(run.sinks)[sink.name]))
    writer = sink.writer(WriterContext(owner=owner, batch=9, slot=0, copy="1.0.0"))
    writer.begin()
    writer.write(story.rows_of(sink.name, [1]))
    try:
        yield
    finally:
        writer.abort()


def _mysql(servers: Servers) -> dict[str, Any]:
    witness = servers.mariadb
    tables = witness.rows(
        "SELECT TABLE_NAME, TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
        "AND TABLE_NAME LIKE 'sparkonce%' ORDER BY TABLE_NAME"
    )
    marked = witness.rows(_MARKED)
    created = {name: witness.rows(f"SHOW CREATE TABLE {name}")[0][1] for name in _OWN_TABLES}
    return {
        "xids": [[*numbers, data.hex()] for *numbers, data in witness.rows("XA RECOVER")],
        "tables": [list(map(str, one)) for one in tables],
        "markers": [[_text(value) for value in row] for row in marked],
        "created": created,
    }


_MARKED = (
    "SELECT prefix, query, batch, copy, slot, position, nonce, kind, begun_ms FROM sparkonce_commits "
    "ORDER BY prefix, query, batch, slot, copy"
)
_OWN_TABLES = ("sparkonce_commits", "sparkonce_servers")


def _redis(everywhere: Everywhere) -> dict[str, Any]:
    lists: dict[str, list[str]] = {}
    ledgers: dict[str, dict[str, str]] = {}
    texts: dict[str, str] = {}
    for client in everywhere.clients:
        for key in client.scan_iter("sparkonce:*", count=1000):
            match client.type(key):
                case b"list":
                    lists[key.decode()] = [b64encode(one).decode() for one in client.lrange(key, 0, -1)]
                case b"hash":
                    found = client.hgetall(key).items()
                    ledgers[key.decode()] = dict(sorted((name.decode(), value.decode()) for name, value in found))
                case _:
                    texts[key.decode()] = client.get(key).decode()
    everywhere.close()
    return {"texts": texts, "ledgers": dict(sorted(ledgers.items())), "lists": dict(sorted(lists.items()))}


def _s3(servers: Servers) -> dict[str, Any]:
    bucket = servers.bucket
    listed = bucket.client.list_objects_v2(Bucket=bucket.name).get("Contents", ())
    heads = {one["Key"]: bucket.client.head_object(Bucket=bucket.name, Key=one["Key"]) for one in listed}
    return {
        "uploads": sorted([one["Key"], one["UploadId"]] for one in bucket.uploads()),
        "objects": {key: head.get("Metadata", {}) for key, head in sorted(heads.items())},
        "manifests": {key: bucket.read(key).decode() for key in sorted(heads) if "/_manifest/" in key},
    }


def _delta(log: Path) -> list[dict[str, Any]]:
    versions = []
    for path in sorted(log.glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        found = {kind: value for action in actions for kind, value in action.items() if kind in ("txn", "commitInfo")}
        if "txn" in found:
            txn = found["txn"]
            told = found["commitInfo"]["userMetadata"]
            versions.append({"appId": txn["appId"], "version": txn["version"], "userMetadata": told})
    return versions


def _iceberg(servers: Servers) -> dict[str, Any]:
    spark = servers.spark
    table = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, "ice.db.numbers")
    table.refresh()
    properties = {str(key): str(value) for key, value in dict(table.properties()).items()}
    summaries = [dict(snapshot.summary()) for snapshot in table.snapshots()]
    ids = ("wap.id", "published-wap-id")
    return {
        "properties": {key: properties[key] for key in sorted(properties) if key.startswith("sparkonce.")},
        "summaries": [{key: str(one[key]) for key in ids if key in one} for one in summaries],
        "branches": sorted(str(name) for name in table.refs() if str(name) != "main"),
    }


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value
