from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pymysql
import pytest

from eventually import eventually
from integration.mysql_scene import MAY_NOT_RECOVER, Numbers, name_of, visible
from one_run import finish, outcomes, prepare
from sparkonce.errors import PrepareError, UnknownOutcomeError
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.sql.dialect import Location, SqlTransaction
from sparkonce.sinks.sql.mysql import finishing
from sparkonce.sinks.sql.mysql.dialect import MYSQL_DIALECT
from sparkonce.sinks.sql.mysql.settings import FORMAT_ID, Xid, lock_name, stage_table
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.testing.scene import Scene
from sparkonce_lab.systems.mysql import MySQLSystem

COMMITTED = [Outcome.COMMITTED]
BOTH = pytest.mark.parametrize("scene", ["two_phase", "staged"], indirect=True)
STAGED = pytest.mark.parametrize("scene", ["staged"], indirect=True)
TWO_PHASE = pytest.mark.parametrize("scene", ["two_phase"], indirect=True)


@pytest.fixture
def mariadb(mariadb) -> MySQLSystem:
    mariadb.ask("CREATE TABLE target (number BIGINT PRIMARY KEY) ENGINE=InnoDB")
    return mariadb


@pytest.fixture
def scene(mariadb, request) -> Iterator[Scene]:
    with closing(Scene(Numbers(), MySQLSink(mariadb.settings, table="target", commit=request.param))) as made:
        yield made


# --- XA --------------------------------------------------------------------------------------------------------------


@TWO_PHASE
def test_nota_proves_nothing_while_the_connection_that_prepared_is_open(scene, mariadb, monkeypatch):
    monkeypatch.setattr("sparkonce.sinks.sql.mysql.connection.Connection.close", lambda self: None)
    writer = scene.open(0)
    handle = scene.handle(writer.prepare(), rows=2)
    monkeypatch.undo()
    xid = Xid.of(name_of(handle))
    with pytest.raises(pymysql.err.MySQLError, match="1397"):
        mariadb.ask(f"XA COMMIT {xid}")
    (first,) = scene.committer.commit([handle])
    assert first.outcome is Outcome.RETRY
    # The writer cannot do anything anymore: the committer has killed its connection.
    assert scene.commit(handle) == COMMITTED
    assert visible(mariadb) == [0, 1]


@TWO_PHASE
@pytest.mark.parametrize("rolled_back", [True, False])
def test_without_the_right_to_list_what_is_prepared_nothing_is_lost(scene, mariadb, monkeypatch, rolled_back):
    """On MySQL, XA_RECOVER_ADMIN is revoked after the start. Without it, lost and held branches look the same."""
    # This is the server's answer about a branch whose connection is still open.
    xaer_nota = 1397
    handle = scene.prepare(1)

    def is_ended() -> bool:
        try:
            mariadb.ask(f"XA {'ROLLBACK' if rolled_back else 'COMMIT'} {Xid.of(name_of(handle))}")
        except pymysql.err.OperationalError as error:
            if error.args[0] != xaer_nota:
                raise
            return False
        return True

    eventually(is_ended, "the server knows that the connection that prepared it has ended")
    with monkeypatch.context() as on_mysql:
        on_mysql.setattr("sparkonce.sinks.sql.mysql.connection.flavour_of", lambda _: MAY_NOT_RECOVER)
        (found,) = scene.new_committer().commit([handle])
        assert (found.outcome, "XA_RECOVER_ADMIN" in found.reason) == (Outcome.UNKNOWN, True)
        with pytest.raises(UnknownOutcomeError, match="XA_RECOVER_ADMIN"):
            scene.new_committer().list_lingering([scene.owner])
    (found,) = scene.new_committer().commit([handle])
    assert found.outcome is (Outcome.LOST if rolled_back else Outcome.ALREADY_COMMITTED)


@TWO_PHASE
def test_an_ok_that_did_nothing_is_not_believed(scene, mariadb):
    """MariaDB forgets a branch that is finished before InnoDB knows that its connection has ended."""

    name = TransactionName(
        prefix=scene.facts["prefix"], query=scene.query, token=scene.owner.token, batch=0, slot=0, copy="0" * 12
    )
    location = Location(server=scene.facts["server"])
    marker = SqlTransaction(kind="two_phase", name=name, location=location, begun_ms=1)
    xid = Xid.of(name)
    before = mariadb.prepared()
    with closing(mariadb.connect()) as preparing, preparing.cursor() as cursor:
        cursor.execute(f"XA START {xid}")
        cursor.execute("INSERT INTO target VALUES (5)")
        cursor.execute(
            "INSERT INTO sparkonce_commits VALUES (%s, %s, 0, %s, 0, %s, %s, 'two_phase', 1, 0)",
            (name.prefix, name.query, name.copy, name.token.position, name.token.nonce),
        )
        cursor.execute(f"XA END {xid}")
        cursor.execute(f"XA PREPARE {xid}")
        preparing._execute_command(0x1F, b"")  # COM_RESET_CONNECTION: InnoDB does not release the branch
        preparing._read_ok_packet()
        handle = scene.handle(MYSQL_DIALECT.fields.write(marker), rows=1)
        for _ in range(2):
            (answer,) = scene.committer.commit([handle])
            assert answer.outcome is Outcome.RETRY
            assert "restart the server" in answer.reason
    assert visible(mariadb) == []
    assert mariadb.prepared() == before
    mariadb.restart()
    assert scene.commit(handle, by=scene.new_committer()) == COMMITTED
    assert visible(mariadb) == [5]


@TWO_PHASE
def test_xids_of_others_are_left_alone(scene, mariadb):
    before = mariadb.prepared()
    own = scene.prepare(0)
    copy = name_of(own).copy
    foreign = [
        "'just text','b',1",
        f"X'00ff80',X'fffe',{FORMAT_ID}",
        f"'{scene.query}.7-00000000.{copy}','other.prefix',{FORMAT_ID}",
        f"'{scene.query}.7-{scene.owner.token.nonce}.{'0' * 12}','{scene.facts['prefix']}',4711",
    ]
    for number, xid in enumerate(foreign):
        with closing(mariadb.connect()) as other, other.cursor() as cursor:
            cursor.execute(f"XA START {xid}")
            cursor.execute("INSERT INTO target VALUES (%s)", [100 + number])
            cursor.execute(f"XA END {xid}")
            cursor.execute(f"XA PREPARE {xid}")
    assert len(mariadb.prepared()) == len(before) + 5
    scene.sweep()
    assert len(mariadb.prepared()) == len(before) + 4
    for xid in foreign:
        mariadb.end_branch("ROLLBACK", xid)


@TWO_PHASE
def test_an_abort_that_comes_too_late_for_a_branch_that_only_recovery_lists(scene, mariadb, monkeypatch):
    """It was prepared after the markers were read. Its xid does not contain the batch."""
    handle = scene.prepare(0, batch=3)
    with monkeypatch.context() as earlier:
        earlier.setattr(finishing, "unsettled", lambda *_: [])
        (found,) = scene.lingering()
    assert name_of(found).batch == 0
    xid = Xid.of(name_of(handle))
    mariadb.ask(f"XA COMMIT {xid}")
    assert scene.abort(found) == [Outcome.ALREADY_COMMITTED]
    monkeypatch.setattr(finishing, "recovered", lambda *_: {xid})  # the state before the commit
    assert scene.lingering() == []
    assert visible(mariadb) == [0, 1]


# --- paused workers and drivers --------------------------------------------------------------------------------------


@BOTH
def test_a_paused_writer_loses_its_connection(scene, mariadb):
    writer = scene.open(0)
    writer._rows.finish()  # what a chunk of rows would do
    (found,) = scene.lingering()
    copy = name_of(found).copy
    assert mariadb.ask("SELECT IS_USED_LOCK(%s)", lock_name(copy)) != [(None,)]
    assert scene.abort(found) == [Outcome.ABORTED]
    assert mariadb.ask("SELECT IS_USED_LOCK(%s)", lock_name(copy)) == [(None,)]
    with pytest.raises(PrepareError):
        writer.prepare()
    writer.abort()
    scene.expect_nothing_lingers("after the sweep")
    assert mariadb.stages() == []
    assert visible(mariadb) == []


@STAGED
def test_a_batch_is_merged_whole_or_not_at_all(scene, mariadb):
    good, bad = scene.prepare(0), scene.prepare(10, slot=1)
    mariadb.ask("INSERT INTO target VALUES (11)")
    for _ in range(2):
        answers = scene.committer.commit([good, bad])
        assert {answer.outcome for answer in answers} == {Outcome.UNKNOWN}
        assert "1062" in answers[0].reason
    assert visible(mariadb) == [11]
    mariadb.ask("DELETE FROM target")
    assert scene.commit(good, bad) == COMMITTED * 2
    assert visible(mariadb) == [0, 1, 10, 11]


@STAGED
def test_a_merge_that_may_still_land_is_never_lost(scene, mariadb, monkeypatch):
    """A driver's connection was cut while the server was merging: its successor waits, or ends it if it is idle."""
    monkeypatch.setattr(finishing, "_WAIT_S", 2)
    monkeypatch.setattr(finishing, "_IDLE_S", 1)
    handle = scene.prepare(0)
    with closing(mariadb.connect()) as first, first.cursor() as cursor:
        lock = merge_lock(mariadb, scene, handle)
        cursor.execute("SELECT GET_LOCK(%s, 0)", [lock])
        cursor.execute("START TRANSACTION")
        cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS none_{secrets.token_hex(2)}")
        (answer,) = scene.committer.commit([handle])
        assert answer.outcome is Outcome.RETRY
        assert scene.commit(handle) == COMMITTED
        with pytest.raises(pymysql.err.MySQLError):
            cursor.execute("SELECT 1")
    assert visible(mariadb) == [0, 1]


@STAGED
def test_a_merge_between_two_statements_is_left_alone(scene, mariadb, monkeypatch):
    """The server reports it as idle for a moment."""
    handle = scene.prepare(0)
    monkeypatch.setattr(finishing, "_WAIT_S", 0)
    monkeypatch.setattr(finishing, "_IDLE_S", 3600)
    with closing(mariadb.connect()) as first, first.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 0)", [merge_lock(mariadb, scene, handle)])
        (answer,) = scene.committer.commit([handle])
        assert answer.outcome is Outcome.RETRY
        cursor.execute("SELECT 1")
    assert scene.commit(handle) == COMMITTED


def merge_lock(mariadb: MySQLSystem, scene: Scene, handle: Handle) -> str:
    import hashlib

    name = name_of(handle)
    return f"sparkonce:merge:{hashlib.sha256(f'{name.prefix}.{name.query}'.encode()).hexdigest()[:24]}"


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("change", ["TRUNCATE {}", "DELETE FROM {} LIMIT 1", "INSERT INTO {} VALUES (9, 9)"])
def test_a_staging_table_that_was_changed_is_not_merged(mariadb, mode, change):
    """No other table of the batch is merged either.

    Once its remains are dropped as advised, it counts as lost and is healed.
    """
    given = MySQLSink(mariadb.settings, table="target", mode=mode, key_columns=["number"] if mode == "upsert" else ())
    with closing(Scene(Numbers(), given)) as scene:
        kept, changed = scene.prepare(0), scene.prepare(10, slot=1)
        table = stage_table(name_of(changed).copy)
        mariadb.ask(change.format(table))
        answers = scene.committer.commit([kept, changed])
        assert {answer.outcome for answer in answers} == {Outcome.UNKNOWN}
        assert "rows arrived, but 2 were prepared" in answers[0].reason
        assert table in answers[0].reason
        assert (visible(mariadb), len(mariadb.stages())) == ([], 2)
        mariadb.ask(f"DROP TABLE {table}")
        assert scene.commit(kept, changed) == [Outcome.COMMITTED, Outcome.LOST]
        assert visible(mariadb) == [0, 1]


@STAGED
def test_a_staging_table_that_cannot_be_read_is_not_lost(scene, mariadb):
    handle = scene.prepare(0)
    table = stage_table(name_of(handle).copy)
    ((comment,),) = mariadb.ask("SELECT TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_NAME = %s", table)
    mariadb.ask(f"ALTER TABLE {table} COMMENT='mine'")
    assert scene.commit(handle) == [Outcome.UNKNOWN]
    mariadb.ask(f"ALTER TABLE {table} COMMENT=%s", comment)
    assert scene.commit(handle) == COMMITTED


def test_a_staging_table_that_may_not_be_seen_is_not_lost(mariadb):
    """Without privileges on a table, information_schema does not show it."""
    user = f"user_{secrets.token_hex(3)}"
    mariadb.ask(f"CREATE USER {user}@'127.0.0.1'")
    mariadb.ask(f"GRANT ALL ON {mariadb.database}.* TO {user}@'127.0.0.1'")
    given = MySQLSink({**mariadb.settings, "user": user, "password": ""}, table="target")
    with closing(Scene(Numbers(), given)) as scene:
        handle = scene.prepare(0)
        mariadb.ask(f"REVOKE ALL ON {mariadb.database}.* FROM {user}@'127.0.0.1'")
        for table in ("target", "sparkonce_commits", "sparkonce_servers"):
            mariadb.ask(f"GRANT SELECT, INSERT, DELETE ON {table} TO {user}@'127.0.0.1'")
        assert scene.commit(handle, by=scene.new_committer()) == [Outcome.UNKNOWN]
        mariadb.ask(f"GRANT ALL ON {mariadb.database}.* TO {user}@'127.0.0.1'")
        assert scene.commit(handle, by=scene.new_committer()) == COMMITTED
    mariadb.ask(f"DROP USER {user}@'127.0.0.1'")


@pytest.mark.parametrize("commit", ["two_phase", "staged"])
def test_names_may_have_any_characters(mariadb, commit):
    """The server stores comments and identifiers as 3-byte UTF-8, and replaces other characters with ``?``."""
    given = MySQLSink(mariadb.settings, table="target", commit=commit, prefix="é漢😀")
    with closing(Scene(Numbers(), given)) as odd:
        kept, left = odd.prepare(0), odd.prepare(10)
        assert odd.commit(kept) == COMMITTED
        assert [one.transaction for one in odd.lingering()] == [left.transaction]
        assert visible(mariadb) == [0, 1]


@BOTH
def test_markers_of_old_batches_are_tidied_and_their_batches_are_not_lost(scene, mariadb):
    """A driver that was paused for hundreds of batches checks a committed transaction again."""
    old, recent, newest = handles = [scene.prepare(10 * batch, batch=batch) for batch in (0, 1, 201)]
    other = scene.prepare(70, owner=scene.make_owner(position=9, query="0" * 12))
    assert scene.commit(*handles, other) == COMMITTED * 4
    scene.committer.conclude(201, [newest])
    kept = mariadb.ask("SELECT batch FROM sparkonce_commits WHERE query = %s ORDER BY 1", scene.query)
    assert kept == [(1,), (201,)]
    assert len(scene.committer.list_traces("0" * 12, scene.facts)) == 1
    (answer,) = scene.committer.commit([old])
    assert answer.outcome is Outcome.UNKNOWN
    assert "tidied" in answer.reason
    assert scene.commit(recent) == [Outcome.ALREADY_COMMITTED]


@BOTH
def test_a_lost_table_of_markers_is_not_taken_for_lost_rows(scene, mariadb):
    handle = scene.prepare(0)
    scene.commit(handle)
    mariadb.ask("RENAME TABLE sparkonce_commits TO hidden")
    (answer,) = scene.committer.commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "sparkonce_commits" in answer.reason


@BOTH
def test_another_server_knows_nothing(scene, mariadb):
    """A replica or a copy of the server does not have the transaction, which proves nothing."""
    handle = scene.prepare(0)
    ((host,),) = mariadb.ask("SELECT host FROM sparkonce_servers")
    mariadb.ask("UPDATE sparkonce_servers SET host = 'elsewhere:1'")
    for call in (scene.new_committer().commit, scene.new_committer().abort):
        (answer,) = call([handle])
        assert answer.outcome is Outcome.UNKNOWN
        assert "without an id" in answer.reason
    mariadb.ask("UPDATE sparkonce_servers SET host = %s", host)
    assert scene.commit(handle, by=scene.new_committer()) == COMMITTED


def test_the_later_row_of_a_key_wins(mariadb):
    mariadb.ask("CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(9), age INT DEFAULT 7) ENGINE=InnoDB")
    mariadb.ask("INSERT INTO people VALUES (1, 'old', 40)")
    sink = MySQLSink(mariadb.settings, table="people", mode="upsert", key_columns=["ID"])
    handle = prepare(sink, pa.record_batch({"id": pa.array([1, 2, 1], pa.int32()), "name": ["a", "b", "c"]}))
    assert outcomes(finish(sink, handle)) == COMMITTED
    assert mariadb.ask("SELECT * FROM people ORDER BY id") == [(1, "c", 40), (2, "b", 7)]
