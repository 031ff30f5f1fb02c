"""CHECK constraints of a MariaDB table, including those that make a column JSON, before and after the decision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

import one_run
from sparkonce.errors import PrepareError
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.sql.mysql.names import stage_table
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.testing.hooks import SinkHooks
from sparkonce.testing.scene import Scene
from sparkonce_lab.systems.mysql import MySQLSystem


@pytest.fixture
def mariadb(mariadb: MySQLSystem) -> MySQLSystem:
    mariadb.ask(
        "CREATE TABLE target (id BIGINT PRIMARY KEY, j JSON, `od``d` TEXT CHECK (`od``d` NOT LIKE '5%' AND 1 % 2 = 1), "
        "later INT DEFAULT 3, CONSTRAINT no_7 CHECK (id <> 7), CONSTRAINT both_of CHECK (id <> later))"
    )
    return mariadb


@pytest.fixture
def scene(mariadb: MySQLSystem) -> Iterator[Scene]:
    with closing(Scene(SinkHooks(), MySQLSink(mariadb.settings, table="target"))) as made:
        yield made


def prepare(scene: Scene, *ids: int, j: str = "{}", odd: str = "x") -> Handle:
    rows = {"id": pa.array(ids, pa.int64()), "j": [j] * len(ids), "od`d": [odd] * len(ids)}
    return one_run.prepare(scene.sink, pa.record_batch(rows), run=scene.owner)


@pytest.mark.parametrize(
    ("row", "name"),
    [({"j": "{bad"}, "j"), ({"odd": "5 %"}, "od``d"), ({"ids": (7,)}, "no_7")],
)
def test_what_a_check_refuses_is_refused_before_the_decision(
    scene: Scene, mariadb: MySQLSystem, row: dict[str, object], name: str
) -> None:
    ids = row.pop("ids", (1,))
    with pytest.raises(PrepareError, match=f"table 'target'.* 4025, CONSTRAINT `{name}` failed") as caught:
        prepare(scene, *ids, **row)  # type: ignore[misc, arg-type]
    assert "change the CHECK" in caught.value.next_step
    assert mariadb.ask("SELECT COUNT(*) FROM target") == [(0,)]


@pytest.mark.parametrize(
    ("ids", "words", "step"),
    [
        ((3,), "error 4025", "UPDATE one in its staging table"),
        ((5, 5), "another row of the batch", "--on-conflict nothing"),
    ],
)
def test_what_is_refused_after_the_decision_says_where_and_what_to_do(
    scene: Scene, mariadb: MySQLSystem, ids: tuple[int, ...], words: str, step: str
) -> None:
    """A CHECK that involves a column that is not written, and two rows with the same key."""
    handle = prepare(scene, *ids)
    name = TransactionName.parse(str(handle["transaction"]))
    assert name is not None
    (found,) = scene.committer.commit([handle])
    assert found.outcome is Outcome.UNKNOWN
    for part in (words, stage_table(name.copy)):
        assert part in found.reason
    assert step in found.next_step
    mariadb.ask(f"UPDATE {stage_table(name.copy)} SET id = 8 ORDER BY sparkonce_row LIMIT 1")  # noqa: S608 - the test's
    assert scene.commit(handle) == [Outcome.COMMITTED]
    assert sorted(one for (one,) in mariadb.ask("SELECT id FROM target")) == sorted({8, *ids[1:]})
