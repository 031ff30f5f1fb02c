"""Rows that a table rejects are detected before the decision, by a merge that is rolled back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pymysql
import pytest

import one_run
from integration.mysql_scene import Numbers, name_of, visible
from sparkonce.errors import PreflightError, PrepareError, UnknownOutcomeError
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.sinks.sql.mysql import finishing
from sparkonce.sinks.sql.mysql.settings import stage_table
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.testing.hooks import SinkHooks
from sparkonce.testing.scene import Scene
from sparkonce_lab.systems.mysql import MySQLSystem

OPEN = "CREATE TABLE target (number BIGINT) ENGINE=InnoDB"
PARENT = "CREATE TABLE p (number BIGINT PRIMARY KEY) ENGINE=InnoDB"


def scene_of(mariadb: MySQLSystem, table: str = "target", **how: object) -> Scene:
    return Scene(Numbers(), MySQLSink(mariadb.settings, table=table, **how))


TRIGGER = (
    "CREATE TRIGGER no BEFORE INSERT ON target FOR EACH ROW IF NEW.number = 11 THEN SIGNAL SQLSTATE '45000' "
    "SET MESSAGE_TEXT = 'not eleven'; END IF"
)
REFUSING = {
    "a primary key": ((OPEN, "ALTER TABLE target ADD PRIMARY KEY (number)", "INSERT INTO target VALUES (11)"), "1062"),
    "a foreign key": (
        (
            PARENT,
            "INSERT INTO p VALUES (0), (1)",
            OPEN,
            "ALTER TABLE target ADD FOREIGN KEY (number) REFERENCES p (number)",
        ),
        "1452",
    ),
    "a trigger": ((OPEN, TRIGGER), "1644"),
    "a missing partition": ((f"{OPEN} PARTITION BY RANGE (number) (PARTITION p0 VALUES LESS THAN (5))",), "1526"),
    "a check of what is not written": (
        (OPEN, "ALTER TABLE target ADD more INT DEFAULT 11, ADD CHECK (number <> more)"),
        "4025",
    ),
}


@pytest.mark.parametrize("what", REFUSING)
def test_what_a_table_refuses_is_found_before_the_decision(mariadb, what):
    statements, number = REFUSING[what]
    for statement in statements:
        mariadb.ask(statement)
    before = visible(mariadb)
    with closing(scene_of(mariadb)) as scene:
        good, bad = scene.prepare(0), scene.prepare(10, slot=1)
        assert scene.committer.check_prepared([good]) == ""
        with pytest.raises(PrepareError, match=f"not decided: error {number}") as caught:
            scene.committer.check_prepared([good, bad])
        assert caught.value.next_step
        assert visible(mariadb) == before
        if "key" in what and number == "1062":
            assert "refuses rows by key 'PRIMARY' (number)" in caught.value.message
        if number == "1526":
            assert "no partition for value '…'" in caught.value.message


@pytest.mark.parametrize(
    ("change", "number"),
    [
        ("ADD CHECK (number <> 11)", "4025"),
        ("ADD more INT NOT NULL", "1364"),
        ("MODIFY number BIGINT NOT NULL", "1048"),
        ("ADD UNIQUE (number)", "1062"),
    ],
)
def test_what_is_added_to_a_table_while_a_batch_is_written_is_found_before_the_decision(mariadb, change, number):
    mariadb.ask(OPEN)
    rows = pa.record_batch({"number": pa.array([11, 11, None], pa.int64())})
    with closing(scene_of(mariadb)) as scene:
        handle = one_run.prepare(scene.sink, rows)
        mariadb.ask(f"ALTER TABLE target {change}")
        with pytest.raises(PrepareError, match=f"not decided: error {number}"):
            scene.committer.check_prepared([handle])


@pytest.mark.parametrize(
    "columns",
    ["number BIGINT, KEY (number)", "id BIGINT AUTO_INCREMENT PRIMARY KEY, number BIGINT CHECK (number >= 0)"],
)
def test_a_table_that_can_refuse_nothing_more_is_not_merged_twice(mariadb, columns, monkeypatch):
    mariadb.ask(f"CREATE TABLE target ({columns}) ENGINE=InnoDB")
    with closing(scene_of(mariadb)) as scene:
        handle = scene.prepare(0)
        monkeypatch.setattr("sparkonce.sinks.sql.mysql.finishing.merge_steps", None)
        assert scene.committer.check_prepared([handle]) == ""


def test_rows_that_another_session_holds_are_not_taken_for_a_refusal(mariadb):
    mariadb.ask("CREATE TABLE target (number BIGINT PRIMARY KEY) ENGINE=InnoDB")
    with closing(scene_of(mariadb)) as scene, closing(mariadb.connect()) as other, other.cursor() as cursor:
        handle = scene.prepare(0)
        cursor.execute("START TRANSACTION")
        cursor.execute("INSERT INTO target VALUES (0)")
        with pytest.raises(UnknownOutcomeError, match="1205"):
            scene.committer.check_prepared([handle])
        cursor.execute("ROLLBACK")
        assert scene.committer.check_prepared([handle]) == ""


def test_an_abort_of_a_copy_that_lost_does_not_wait_for_a_trial(mariadb, monkeypatch):
    mariadb.ask("CREATE TABLE target (number BIGINT PRIMARY KEY) ENGINE=InnoDB")
    monkeypatch.setattr(finishing, "_WAIT_S", 0)
    steps, aborted = finishing.merge_steps, []
    with closing(scene_of(mariadb)) as scene:
        winner, loser = scene.prepare(0), scene.prepare(0)

        def meanwhile(*given: Any) -> list[str]:
            aborted.extend(scene.abort(loser))
            return steps(*given)

        monkeypatch.setattr(finishing, "merge_steps", meanwhile)
        assert (scene.committer.check_prepared([winner]), aborted) == ("", [Outcome.ABORTED])
        monkeypatch.undo()
        assert scene.commit(winner) == [Outcome.COMMITTED]


def test_a_trial_whose_driver_is_gone_does_not_hold_the_next_drivers_merge_up(mariadb, monkeypatch):
    """The server keeps its session and its rows' locks for hours."""
    mariadb.ask("CREATE TABLE target (number BIGINT PRIMARY KEY) ENGINE=InnoDB")
    monkeypatch.setattr(finishing, "_IDLE_S", 1)
    with closing(scene_of(mariadb)) as scene, closing(mariadb.connect()) as gone, gone.cursor() as cursor:
        handle = scene.prepare(0)
        one = name_of(handle)
        of_query = hashlib.sha256(f"{one.prefix}.{one.query}".encode()).hexdigest()[:24]
        cursor.execute("SELECT GET_LOCK(%s, 0)", [f"sparkonce:trial:{of_query}"])
        cursor.execute("START TRANSACTION")
        cursor.execute("INSERT INTO target VALUES (0)")
        scene.committer.commit([handle])  # this waits for the row for longer than a driver may be idle
        assert scene.commit(handle) == [Outcome.COMMITTED]
        with pytest.raises(pymysql.err.MySQLError):
            cursor.execute("COMMIT")
    assert visible(mariadb) == [0, 1]


def test_rows_of_another_sink_of_the_batch_are_waited_for(mariadb):
    for statement in (PARENT, OPEN, "ALTER TABLE target ADD FOREIGN KEY (number) REFERENCES p (number)"):
        mariadb.ask(statement)
    parents, children = scene_of(mariadb, "p", name="parents"), scene_of(mariadb, name="children")
    parents.owner = parents.make_owner(position=7, query=children.query)
    with closing(parents), closing(children):
        child = children.prepare(0)
        with pytest.raises(PrepareError, match="1452"):
            children.committer.check_prepared([child])
        parent = parents.prepare(0)
        assert children.committer.check_prepared([child]) == ""
        assert (parents.commit(parent), children.commit(child)) == ([Outcome.COMMITTED], [Outcome.COMMITTED])


@pytest.mark.parametrize(("how", "whose"), [("nothing", "theirs"), ("update", "ours")])
def test_an_operator_lets_a_decided_batch_skip_or_replace_what_is_there(mariadb, how, whose):
    """Another writer was faster between the trial and the commit."""

    class Named(SinkHooks):
        def make_rows(self, start: int, count: int) -> pa.RecordBatch:
            return pa.record_batch({"number": list(range(start, start + count)), "who": ["ours"] * count})

    mariadb.ask("CREATE TABLE target (number BIGINT PRIMARY KEY, who VARCHAR(9)) ENGINE=InnoDB")
    sink = MySQLSink(mariadb.settings, table="target")
    with closing(Scene(Named(), sink)) as scene:
        handles = [scene.prepare(0), scene.prepare(1, slot=1)]
        mariadb.ask("INSERT INTO target VALUES (1, 'theirs')")
        (answer, _) = scene.committer.commit(handles)
        assert (answer.outcome, "--on-conflict nothing" in answer.next_step) == (Outcome.UNKNOWN, True)
        sink.decided_conflicts = how
        with closing(sink.committer()) as committer:
            assert [one.outcome for one in committer.commit(handles)] == [Outcome.COMMITTED] * 2
    assert mariadb.ask("SELECT * FROM target ORDER BY 1") == [(0, "ours"), (1, whose), (2, "ours")]


def test_a_table_with_history_is_a_table(mariadb):
    mariadb.ask(f"{OPEN} WITH SYSTEM VERSIONING")
    with closing(scene_of(mariadb)) as scene:
        handle = scene.prepare(0)
        assert (scene.committer.check_prepared([handle]), scene.commit(handle)) == ("", [Outcome.COMMITTED])


@pytest.mark.parametrize("columns", [[f"c{n} INT" for n in range(1017)], ["c0 VARCHAR(16383) NOT NULL"]])
def test_a_table_without_room_for_a_column_more_is_refused_at_start(mariadb, columns):
    mariadb.ask(f"CREATE TABLE target ({', '.join(columns)}) ENGINE=InnoDB")
    names = [column.partition(" ")[0] for column in columns]
    kind = pa.int32() if len(names) > 1 else pa.string()
    for commit in ("two_phase", "staged"):
        sink = MySQLSink(mariadb.settings, table="target", commit=commit)
        sink.columns(pa.schema([(name, kind) for name in names]))
        if commit == "two_phase":
            sink.preflight("0123456789ab", None)
            continue
        with pytest.raises(PreflightError, match=r"commit='staged'.* is at InnoDB's limits") as caught:
            sink.preflight("0123456789ab", None)
        assert "commit='two_phase'" in caught.value.next_step


# --- CHECKs, including those that make a column JSON -----------------------------------------------------------------


@pytest.fixture
def checked(mariadb) -> Iterator[Scene]:
    mariadb.ask(
        "CREATE TABLE target (id BIGINT PRIMARY KEY, j JSON, `od``d` TEXT CHECK (`od``d` NOT LIKE '5%' AND 1 % 2 = 1), "
        "later INT DEFAULT 3, CONSTRAINT no_7 CHECK (id <> 7), CONSTRAINT both_of CHECK (id <> later))"
    )
    with closing(scene_of(mariadb)) as made:
        yield made


def prepare_checked(scene: Scene, *ids: int, j: str = "{}", odd: str = "x") -> Handle:
    rows = {"id": pa.array(ids, pa.int64()), "j": [j] * len(ids), "od`d": [odd] * len(ids)}
    return one_run.prepare(scene.sink, pa.record_batch(rows), run=scene.owner)


@pytest.mark.parametrize(("row", "name"), [({"j": "{bad"}, "j"), ({"odd": "5 %"}, "od``d"), ({"ids": (7,)}, "no_7")])
def test_what_a_check_refuses_is_refused_before_the_decision(checked, mariadb, row, name):
    ids = row.pop("ids", (1,))
    with pytest.raises(PrepareError, match=f"table 'target'.* 4025, CONSTRAINT `{name}` failed") as caught:
        prepare_checked(checked, *ids, **row)
    assert "change the CHECK" in caught.value.next_step
    assert mariadb.ask("SELECT COUNT(*) FROM target") == [(0,)]


@pytest.mark.parametrize(
    ("ids", "words", "step"),
    [
        ((3,), "error 4025", "UPDATE one in its staging table"),
        ((5, 5), "another row of the batch", "--on-conflict nothing"),
    ],
)
def test_what_is_refused_after_the_decision_says_where_and_what_to_do(checked, mariadb, ids, words, step):
    """A CHECK that involves a column that is not written, and two rows with the same key."""
    handle = prepare_checked(checked, *ids)
    staging = stage_table(name_of(handle).copy)
    (found,) = checked.committer.commit([handle])
    assert found.outcome is Outcome.UNKNOWN
    for part in (words, staging):
        assert part in found.reason
    assert step in found.next_step
    mariadb.ask(f"UPDATE {staging} SET id = 8 ORDER BY sparkonce_row LIMIT 1")  # noqa: S608 - the test's
    assert checked.commit(handle) == [Outcome.COMMITTED]
    assert sorted(one for (one,) in mariadb.ask("SELECT id FROM target")) == sorted({8, *ids[1:]})
