"""Names that would act as SQL if they were not quoted. Afterwards, the server is asked which objects it has.

Each table, schema, column, prefix and sink has such a name, in every mode. Batches are committed, aborted and recovered
after a kill. Then exactly the right table has the rows, and no other object was created, changed or dropped.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg import sql

from shared_servers import needs_postgres, new_mariadb
from small_job import SmallJob
from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.files.names import values_of
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.sql.mysql.orphans import list_open as list_mysql_orphans
from sparkonce.sinks.sql.mysql.settings import quote
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.sinks.sql.postgres.orphans import list_open as list_orphans
from sparkonce.sinks.sql.postgres.sink import PostgresSink

DROP = "DROP TABLE innocent"
EVERYTHING = f"t\"'`\\); {DROP}; -- %s %% {{}} $1 /*\n數"
"""Quotes of each kind, escapes, placeholders, comments, other scripts and a line break in one name."""

LONGEST = "é" * 31 + "x"
"""63 bytes, PostgreSQL's limit."""
LONGEST_OF_MARIADB = "é" * 64
"""64 characters, MariaDB's."""

MODES: dict[str, dict[str, Any]] = {
    "two_phase": {"commit": "two_phase"},
    "staged": {"commit": "staged"},
    "upsert": {"commit": "staged", "mode": "upsert"},
    "direct": {"guarantee": Guarantee.AT_LEAST_ONCE},
}


def each(longest: str) -> pytest.MarkDecorator:
    """All special characters in one name, in every mode; the longest name in one mode."""
    every = [pytest.param(EVERYTHING, mode, id=f"everything-{mode}") for mode in MODES]
    return pytest.mark.parametrize(("odd", "mode"), [*every, pytest.param(longest, "upsert", id="the longest")])


def live(
    checkpoint: Path, make: Callable[[], TwoPhaseCommitSink], columns: list[str], seen: Callable[[], None]
) -> None:
    """Commits a batch, is killed before and after the decisions of the next ones, and then continues to commit.

    ``seen`` is called while a transaction is open on the server.
    """

    def rows(batch: int, slot: int) -> pa.RecordBatch:
        first = 100 * batch + 10 * slot
        numbers = pa.array([first, first + 1], pa.int64())
        return pa.RecordBatch.from_arrays([numbers] * len(columns), names=columns)

    job = SmallJob(checkpoint, lambda: [make()], rows)
    if make().guarantee is not Guarantee.EXACTLY_ONCE:  # a kill may duplicate rows
        job.run(0, 1, 2, 3)
        return
    job.live(seen)


def numbers() -> list[int]:
    return [100 * batch + 10 * slot + place for batch in range(4) for slot in range(2) for place in range(2)]


# --- PostgreSQL -----------------------------------------------------------------------------------------------------

OBJECTS = """
SELECT n.nspname::text, c.relname::text, c.relkind::text FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' ORDER BY 1, 2
"""


@needs_postgres
@each(LONGEST)
def test_postgresql(postgres, tmp_path, odd, mode):
    def identifiers(*names: str) -> list[sql.Identifier]:
        return [sql.Identifier(name) for name in names]

    ours = {"sparkonce_commits", "sparkonce_commits_pkey", "sparkonce_commits_by_batch"}
    postgres.schema = odd
    key, other = odd, odd[:-1] + "2"
    schema, table, column, second = identifiers(odd, odd, key, other)
    postgres.ask("CREATE TABLE innocent (id bigint); INSERT INTO innocent VALUES (1)")
    postgres.ask(sql.SQL("CREATE SCHEMA {}").format(schema))
    postgres.ask(
        sql.SQL("CREATE TABLE {}.{} ({} bigint PRIMARY KEY, {} bigint NOT NULL, CHECK ({} >= 0))").format(
            schema, table, column, second, second
        )
    )
    before = postgres.ask(OBJECTS)
    sessions: list[str] = []

    def make() -> TwoPhaseCommitSink:
        more = {**MODES[mode], **({"key_columns": [key], "order_by": other} if mode == "upsert" else {})}
        name = odd.replace(".", "_")[:20]
        return PostgresSink(postgres.server.conninfo(), table=odd, schema=odd, prefix=odd[:20], name=name, **more)

    def list_open() -> None:
        sessions.extend(one.kind for one in list_orphans(postgres.server.conninfo()))

    live(tmp_path, make, [key, other], list_open)
    found = postgres.ask(sql.SQL("SELECT {}, {} FROM {}.{} ORDER BY 1").format(column, second, schema, table))
    assert found == [(number, number) for number in numbers()]
    assert [one for one in postgres.ask(OBJECTS) if one[1] not in ours] == before
    assert postgres.ask("SELECT id FROM innocent") == [(1,)]
    assert (postgres.prepared(), postgres.stages()) == ([], [])
    wanted = {"two_phase": "prepared", "staged": "staged", "upsert": "staged"}
    assert sessions == ([wanted[mode]] * 4 if mode in wanted else [])


def test_a_name_that_postgresql_would_cut_off_is_refused():
    """It would be another table's."""
    for more in ({"table": LONGEST + "x"}, {"schema": "x" * 64}, {"table": "a\0b"}, {"commits_schema": ""}):
        with pytest.raises(ConfigurationError, match="1 to 63 bytes"):
            PostgresSink("dbname=x", **{"table": "t", **more})


# --- MariaDB --------------------------------------------------------------------------------------------------------


@each(LONGEST_OF_MARIADB)
def test_mariadb(mariadb, tmp_path, odd, mode):
    tables = "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.tables ORDER BY 1, 2"
    key, other, database = odd, odd[:-1] + "2", odd
    mariadb.ask(f"DROP DATABASE IF EXISTS {quote(database)}")
    inside = new_mariadb(database=database)
    inside.ask("CREATE TABLE innocent (id bigint)")
    inside.ask("INSERT INTO innocent VALUES (1)")
    columns = f"{quote(key)} bigint PRIMARY KEY, {quote(other)} bigint NOT NULL"
    inside.ask(f"CREATE TABLE {quote(odd)} ({columns}) ENGINE=InnoDB")
    before, of_others = inside.ask(tables), inside.prepared()
    kinds: list[str] = []

    def make() -> TwoPhaseCommitSink:
        more = {**MODES[mode], **({"key_columns": [key]} if mode == "upsert" else {})}
        plain = "".join(letter if letter.isprintable() else "_" for letter in odd)[:15]
        return MySQLSink(inside.settings, table=odd, prefix=plain, name=plain, **more)

    def list_open() -> None:
        kinds.extend(one.kind for one in list_mysql_orphans(mariadb.settings) if one.database == database)

    live(tmp_path, make, [key, other], list_open)
    found = inside.ask(f"SELECT {quote(key)}, {quote(other)} FROM {quote(odd)} ORDER BY 1")  # noqa: S608 - quoted
    assert found == [(number, number) for number in numbers()]
    ours = {"sparkonce_commits", "sparkonce_servers"}
    assert [one for one in inside.ask(tables) if not (one[0] == database and one[1] in ours)] == before
    assert inside.ask("SELECT id FROM innocent") == [(1,)]
    assert (inside.stages(), inside.prepared()) == ([], of_others)
    wanted = {"two_phase": "prepared", "staged": "staged", "upsert": "staged"}
    assert kinds == ([wanted[mode]] * 4 if mode in wanted else [])
    inside.ask(f"DROP DATABASE {quote(database)}")


def test_a_name_that_mariadb_does_not_have_is_refused(mariadb):
    with pytest.raises(PreflightError, match="There is no table"):
        MySQLSink(mariadb.settings, table="é" * 65).preflight("0123456789ab", None)


# --- files ----------------------------------------------------------------------------------------------------------

CLIMBING = [
    *("..", "../../up", "/etc/up", ".", "~", "-rf", "a\nb", "%2e%2e%2fup", "a=b", "..\\up", "\x7f\x01", "é數", None),
]
COLUMN = "k/../=%"


def partitioned(batch: int, slot: int) -> pa.RecordBatch:
    ids = [1000 * batch + 100 * slot + place for place in range(len(CLIMBING))]
    return pa.record_batch({"id": pa.array(ids, pa.int64()), COLUMN: pa.array(CLIMBING, pa.string())})


def wanted_partitions() -> list[tuple[int, str | None]]:
    made = [partitioned(batch, slot).to_pylist() for batch in range(4) for slot in range(2)]
    return sorted((row["id"], row[COLUMN]) for rows in made for row in rows)


def partitions_found(files: dict[str, bytes]) -> list[tuple[int, str | None]]:
    """Returns the folder of each partition by its value. Each partition has one folder, and each row exists once."""
    found = []
    for path, content in files.items():
        folder, _, _ = path.partition("/")
        assert path.count("/") == 1
        (value,) = values_of(folder).items()
        assert value[0] == COLUMN
        found += [(number, value[1]) for number in pq.read_table(io.BytesIO(content)).column("id").to_pylist()]
    return sorted(found)


def test_values_of_partitions_do_not_lead_out_of_a_folder(tmp_path):
    root = tmp_path / "inner" / "root"
    SmallJob(tmp_path / "checkpoint", lambda: [FilesSink(str(root), partition_by=[COLUMN])], partitioned).live()
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.parquet")}
    assert partitions_found({name: path.read_bytes() for name, path in files.items()}) == wanted_partitions()
    assert {path.name for path in tmp_path.iterdir()} == {"inner", "checkpoint"}
    assert [path.name for path in root.parent.iterdir()] == ["root"]
    folders = {path.name for path in root.iterdir() if not path.name.startswith("k%2F..%2F%3D%25=")}
    assert folders == {".sparkonce", "_manifest"}


def test_values_of_partitions_do_not_lead_out_of_a_prefix(bucket, tmp_path):
    location = f"s3://{bucket.name}/inner/root"
    options = bucket.server.settings()
    sink = partial(FilesSink, location, partition_by=[COLUMN], store_options=options, name="files")
    SmallJob(tmp_path, lambda: [sink()], partitioned).live()
    found = {key: content for key, content in bucket.objects("").items() if key.endswith(".parquet")}
    assert all(key.startswith("inner/root/") for key in bucket.objects(""))
    assert partitions_found({key.removeprefix("inner/root/"): one for key, one in found.items()}) == wanted_partitions()
    assert bucket.uploads() == []
