from __future__ import annotations

import os
import signal
import threading
from contextlib import closing, suppress
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from postgres_witness import (
    QUERY,
    ask,
    database_fixture,
    finish,
    needs_postgres,
    new_sink,
    open_writer,
    outcomes,
    owner,
    prepare,
    prepared,
    server_fixture,
    staging_tables,
)
from sparkonce.errors import PreflightError, PrepareError, UnknownOutcomeError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.rig.servers.postgres import PostgresServer
from sparkonce.sinks._shared.idle_pool import IdlePool
from sparkonce.sinks.postgres import committer as committer_module
from sparkonce.sinks.postgres import staged as staged_module
from sparkonce.sinks.postgres.connection import connect, is_alive, is_idle
from sparkonce.sinks.postgres.markers import KEPT_BATCHES
from sparkonce.sinks.postgres.settings import Conninfo, Limits
from sparkonce.sinks.postgres.sink import PostgresSink

pytestmark = needs_postgres

both = pytest.mark.parametrize("commit", ["two_phase", "staged"])

COMMITTED, ALREADY, ABORTED = Outcome.COMMITTED, Outcome.ALREADY_COMMITTED, Outcome.ABORTED
RETRY, LOST, UNKNOWN = Outcome.RETRY, Outcome.LOST, Outcome.UNKNOWN


server = server_fixture()
_database = database_fixture("CREATE TABLE t (id bigint, text text)")
sink = partial(new_sink, lock_timeout_s=0.5)


def rows(*ids: int, text: str = "x") -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "text": [text] * len(ids)})


def ids(server: PostgresServer) -> list[int]:
    return [one for (one,) in ask(server, "SELECT id FROM t ORDER BY id")]


# --- what the table refuses -------------------------------------------------------------------------------------------

REFUSALS = {
    "23505": "ALTER TABLE t ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED",
    "P0001": """
        CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not at this hour'; END $$;
        CREATE CONSTRAINT TRIGGER no AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION no()""",
}


@pytest.mark.parametrize("code", REFUSALS)
def test_what_is_checked_at_prepare_fails_there_in_the_servers_words(server: PostgresServer, code: str) -> None:
    ask(server, REFUSALS[code])
    with pytest.raises(PrepareError, match=f"Batch 0, slot 0, .*: {code} "):
        prepare(sink(server, commit="two_phase"), rows(1, 1))
    assert prepared(server) == []
    assert ids(server) == []


def test_a_trigger_that_notifies_cannot_be_prepared(server: PostgresServer) -> None:
    ask(
        server,
        "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_notify('x', 'y'); RETURN NEW; END $$; "
        "CREATE TRIGGER tell AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION tell()",
    )
    with pytest.raises(PrepareError, match=r"0A000 .*commit='staged'"):
        prepare(sink(server, commit="two_phase"), rows(1))
    given = sink(server)
    assert outcomes(finish(given, prepare(given, rows(1)))) == [COMMITTED]


@both
def test_checks_and_not_null_are_refused_before_the_decision(server: PostgresServer, commit: str) -> None:
    ask(server, "ALTER TABLE t ALTER id SET NOT NULL; ALTER TABLE t ADD CHECK (text <> 'bad')")
    given = sink(server, commit=commit)
    for batch, code in ((rows(1, text="bad"), "23514"), (pa.record_batch({"id": [None], "text": ["x"]}), "23502")):
        typed = batch.set_column(0, "id", batch.column(0).cast(pa.int64()))
        with pytest.raises(PrepareError, match=code):
            prepare(given, typed)
    assert (staging_tables(server), prepared(server)) == ([], [])


def test_staged_rows_that_the_table_refuses_wait_for_the_operator(server: PostgresServer) -> None:
    """Decided, not visible, not lost: once the table lets them in, the same handle commits."""
    ask(server, "ALTER TABLE t ADD CONSTRAINT one UNIQUE (id); INSERT INTO t VALUES (2)")
    given = sink(server)
    handles = [prepare(given, rows(1), slot=0), prepare(given, rows(2), slot=1)]
    found = finish(given, *handles)
    assert outcomes(found) == [UNKNOWN, UNKNOWN]
    assert "23505" in found[0].reason
    assert "--on-conflict nothing" in found[0].next_step
    assert ids(server) == [2]
    ask(server, "ALTER TABLE t DROP CONSTRAINT one")
    assert outcomes(finish(given, *handles)) == [COMMITTED, COMMITTED]
    assert ids(server) == [1, 2, 2]


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(
    "change", ["TRUNCATE {}", "DELETE FROM {} WHERE id = 3", "INSERT INTO {} VALUES (9, 'not ours')"]
)
def test_a_staging_table_that_was_changed_is_not_moved(server: PostgresServer, mode: str, change: str) -> None:
    """Nor is any other of the batch. Once what is left of it is dropped, as the answer says, it is lost and healed."""
    ask(server, "ALTER TABLE t ADD PRIMARY KEY (id)")
    given = sink(server, mode=mode, key_columns=["id"]) if mode == "upsert" else sink(server)
    handles = [prepare(given, rows(1, 2), slot=0), prepare(given, rows(3, 4), slot=1)]
    name = str(handles[1]["name"])
    table = f"sparkonce_{QUERY}_{name.rpartition('.')[2]}"
    ask(server, change.format(table))
    for _ in range(2):
        found = finish(given, *handles)
        assert outcomes(found) == [UNKNOWN, UNKNOWN]
        assert table in found[0].reason
        assert name in found[0].reason
        assert "rows, and 2 were prepared" in found[0].reason
        assert (ids(server), len(staging_tables(server))) == ([], 2)
    ask(server, f"BEGIN; DROP TABLE {table}; DELETE FROM sparkonce_commits WHERE name = '{name}'; COMMIT")  # noqa: S608
    assert outcomes(finish(given, *handles)) == [COMMITTED, LOST]
    assert ids(server) == [1, 2]


def test_a_staging_table_cannot_be_changed_between_the_count_and_the_move(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = sink(server)
    handle = prepare(given, rows(1, 2))
    (table,) = staging_tables(server)
    counted = staged_module._changed

    def late(*args: Any) -> Finished | None:
        found = counted(*args)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            ask(server, f"SET lock_timeout = 1; DELETE FROM {table}")  # noqa: S608
        return found

    monkeypatch.setattr(staged_module, "_changed", late)
    assert outcomes(finish(given, handle)) == [COMMITTED]
    assert ids(server) == [1, 2]


def test_a_second_try_waits_for_the_first_ones_key_and_then_gives_up(server: PostgresServer) -> None:
    """The reason why upsert is staged, and why preflight warns of unique indexes."""
    ask(server, "ALTER TABLE t ADD UNIQUE (id)")
    given = sink(server, commit="two_phase")
    first = prepare(given, rows(1))
    with pytest.raises(PrepareError, match=r"55P03.*sparkonce transactions list --system postgres"):
        prepare(given, rows(1))
    finish(given, first, commit=False)
    staged = sink(server)
    tries = [prepare(staged, rows(1)) for _ in range(2)]
    assert outcomes(finish(staged, tries[1])) == [COMMITTED]


@both
def test_a_column_that_changes_its_type_while_rows_are_written_is_noticed(server: PostgresServer, commit: str) -> None:
    """Eight bytes of a bigint are eight bytes of a double to COPY in binary."""
    given = sink(server, commit=commit)
    run = owner(given)
    fine = prepare(given, rows(1), run=run)
    finish(given, fine)
    ask(server, "ALTER TABLE t ALTER id TYPE double precision")
    with pytest.raises(Exception, match="'id' is long, and in the table double precision"):
        prepare(given, rows(2), run=run, batch=1)
    assert ask(server, "SELECT id FROM t") == [(1.0,)]


def test_a_table_that_changes_under_a_staged_copy_is_noticed(server: PostgresServer) -> None:
    given = sink(server)
    writer = open_writer(given, rows(1))
    ask(server, "ALTER TABLE t ALTER id TYPE double precision")
    with pytest.raises(PrepareError, match="was changed while the batch was written"):
        writer.prepare()
    writer.abort()
    assert staging_tables(server) == []


# --- who finishes what ------------------------------------------------------------------------------------------------


@both
def test_a_batch_of_many_slots_is_committed_by_two_drivers_at_once(server: PostgresServer, commit: str) -> None:
    given = sink(server, commit=commit, lock_timeout_s=30)
    run = owner(given)
    handles = [prepare(given, rows(slot), run=run, slot=slot) for slot in range(12)]
    found: list[list[Finished]] = []

    def drive() -> None:
        with closing(given.committer()) as committer:
            answers = list(committer.commit(handles))
            while any(one.outcome is RETRY for one in answers):
                answers = list(committer.commit(handles))
            found.append(answers)

    threads = [threading.Thread(target=drive) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert {one.outcome for answers in found for one in answers} <= {COMMITTED, ALREADY}
    assert ids(server) == list(range(12))
    assert (staging_tables(server), prepared(server)) == ([], [])


def test_a_staged_batch_is_seen_as_a_whole_or_not_at_all(server: PostgresServer) -> None:
    """A lock on the markers holds the commit back; readers see nothing, and the second driver is told to ask again."""
    given = sink(server)
    handles = [prepare(given, rows(slot), slot=slot) for slot in range(3)]
    with psycopg.connect(server.conninfo()) as other:
        other.execute("SELECT FROM sparkonce_commits WHERE name = %s FOR UPDATE", (str(handles[2]["name"]),))
        assert outcomes(finish(given, *handles)) == [RETRY] * 3
        assert outcomes(finish(given, *handles, commit=False)) == [RETRY] * 3
        assert ids(server) == []
    assert outcomes(finish(given, *handles)) == [COMMITTED] * 3
    assert ids(server) == [0, 1, 2]


@both
def test_other_peoples_transactions_and_tables_are_never_touched(server: PostgresServer, commit: str) -> None:
    given = sink(server, commit=commit)
    run = owner(given)
    ours = prepare(given, rows(1), run=run)
    name = str(ours["name"])
    strangers = ["theirs", f"x{name}", name.replace("sparkonce.postgres", "sparkonce.postgres-eu"), f"{name}.1"]
    for gid in strangers:
        ask(server, sql.SQL("BEGIN; INSERT INTO t VALUES (9); PREPARE TRANSACTION {}").format(gid))
    ask(server, "CREATE TABLE sparkonce_0123456789ab_ffffffffffff (id int)")
    with closing(given.committer()) as committer:
        lingering = list(committer.list_lingering([run]))
        assert [one["name"] for one in lingering] == [name]
        committer.abort(lingering)
    assert prepared(server) == sorted(strangers)
    assert staging_tables(server) == ["sparkonce_0123456789ab_ffffffffffff"]


@both
def test_a_handle_of_an_older_mode_is_still_committed(server: PostgresServer, commit: str) -> None:
    """The query was started again with the other setting."""
    handle = prepare(sink(server, commit=commit), rows(1))
    other = sink(server, commit="staged" if commit == "two_phase" else "two_phase")
    assert outcomes(finish(other, handle)) == [COMMITTED]
    assert ids(server) == [1]


def test_a_handle_names_its_own_table(server: PostgresServer) -> None:
    """The query was started again with another table: rows that are decided go where they were meant to."""
    handle = prepare(sink(server), rows(1))
    ask(server, "CREATE TABLE other (id bigint, text text)")
    assert outcomes(finish(sink(server, table="other"), handle)) == [COMMITTED]
    assert ids(server) == [1]


@both
def test_a_writer_of_an_older_run_that_wakes_up_is_found_and_ended(server: PostgresServer, commit: str) -> None:
    """Its session shows its run; once ended, it can neither write nor prepare."""
    given = sink(server, commit=commit)
    old, new = owner(given), owner(given, token=Token(4, "0badcafe"))
    paused, live = open_writer(given, rows(1), run=old), open_writer(given, rows(2), run=new)
    with closing(given.committer()) as committer:
        (found,) = committer.list_lingering([old])
        assert found["commit"] == "open"
        assert outcomes(list(committer.abort([found]))) == [ABORTED]
        assert list(committer.list_lingering([old])) == []
    with pytest.raises(PrepareError, match=r"57P01|connection"):
        paused.prepare()
    paused.abort()
    fields = live.prepare()
    live.close()
    assert fields["name"]
    assert len(prepared(server)) + len(staging_tables(server)) == 1


# --- what the server does ---------------------------------------------------------------------------------------------


@both
def test_a_server_that_is_away_is_asked_again(server: PostgresServer, commit: str) -> None:
    given = sink(server, commit=commit)
    handles = [prepare(given, rows(slot), slot=slot) for slot in range(2)]
    run = owner(given)
    with closing(given.committer()) as committer:
        assert outcomes(list(committer.commit(handles[:1]))) == [COMMITTED]
        server.kill()
        try:
            assert outcomes(list(committer.commit(handles))) == [RETRY, RETRY]
            assert outcomes(list(committer.abort(handles))) == [RETRY, RETRY]
            for call in (lambda: committer.list_lingering([run]), lambda: committer.list_traces(QUERY, run.facts)):
                with pytest.raises(UnknownOutcomeError):
                    call()
        finally:
            server.start()
        assert outcomes(list(committer.commit(handles))) == [ALREADY, COMMITTED]
    assert ids(server) == [0, 1]


@both
def test_a_server_that_stands_still_is_not_waited_for_beyond_the_deadline(server: PostgresServer, commit: str) -> None:
    given = sink(server, commit=commit)
    handle = prepare(given, rows(1))
    given.limits = Limits(commit_s=0.5, answer_s=0.5)
    with closing(given.committer()) as committer:
        assert list(committer.list_lingering([])) == []
        committer.list_traces(QUERY, owner(given).facts)
        for pid in sessions(server):
            stop(pid)
        try:
            assert outcomes(list(committer.commit([handle]))) == [RETRY]
        finally:
            for pid in stopped:
                resume(pid)
            stopped.clear()
        found = outcomes(list(committer.commit([handle])))
        while found == [RETRY]:
            found = outcomes(list(committer.commit([handle])))
        assert found[0] in (COMMITTED, ALREADY)
    assert ids(server) == [1]


def test_a_connection_that_comes_back_after_the_others_were_closed_is_closed(server: PostgresServer) -> None:
    """Given back by a thread for which nobody waits any more."""
    to = Conninfo.of(server.conninfo())
    connections = IdlePool(lambda: connect(to), is_idle=is_idle, is_alive=is_alive)
    with connections.lent(), connections.lent() as idle:
        pass
    assert not idle.closed
    with connections.lent() as late:
        connections.close()
    assert late is not idle
    assert late.closed
    assert idle.closed


stopped: list[int] = []


def sessions(server: PostgresServer) -> list[int]:
    return [
        pid
        for (pid,) in ask(
            server,
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        )
    ]


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    stopped.append(pid)


def resume(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@both
def test_markers_that_may_have_been_tidied_away_make_it_unknown(server: PostgresServer, commit: str) -> None:
    given = sink(server, commit=commit)
    run = owner(given)
    handle = prepare(given, rows(1), run=run, batch=10)
    finish(given, handle)
    late = 10 + KEPT_BATCHES
    for batch in (late, late + 20):
        newer = prepare(given, rows(batch), run=run, batch=batch)
        finish(given, newer)
        with closing(given.committer()) as committer:
            committer.conclude(batch, [newer, Handle(sink=given.name, slot=1)])
            traces = committer.list_traces(QUERY, run.facts)
        kept = [10, late] if batch == late else [late, late + 20]
        assert sorted(int(str(dict(one.committed)["name"]).split(".")[-3]) for one in traces) == kept
    (found,) = finish(given, handle)
    assert found.outcome is UNKNOWN
    assert "tidied" in found.reason
    assert ids(server) == [1, late, late + 20]


@both
def test_markers_are_tidied_whichever_batches_have_rows(server: PostgresServer, commit: str) -> None:
    given = sink(server, commit=commit)
    with closing(given.committer()) as committer:
        for batch in (1, 3, 303):
            handle = prepare(given, rows(batch), batch=batch)
            committer.commit([handle])
            committer.conclude(batch, [handle])
    assert ask(server, "SELECT batch FROM sparkonce_commits") == [(303,)]


@both
def test_without_the_table_of_markers_nothing_is_called_lost(server: PostgresServer, commit: str) -> None:
    given = sink(server, commit=commit)
    handle = prepare(given, rows(1))
    finish(given, handle)
    ask(server, "ALTER TABLE sparkonce_commits RENAME TO away")
    (found,) = finish(given, handle)
    assert found.outcome is UNKNOWN
    assert "42P01" in found.reason


def test_a_role_that_may_not_finish_says_so(server: PostgresServer) -> None:
    handle = prepare(sink(server, commit="two_phase"), rows(1))
    ask(server, "DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN")
    other = PostgresSink(server.conninfo(user="plain"), table="t", commit="two_phase")
    (found,) = finish(other, handle)
    assert (found.outcome, "42501" in found.reason) == (UNKNOWN, True)
    assert prepared(server) == [handle["name"]]


# --- upsert -----------------------------------------------------------------------------------------------------------


def upsert(server: PostgresServer, **more: Any) -> PostgresSink:
    return sink(server, mode="upsert", key_columns=["id"], **more)


def test_the_last_row_of_a_key_wins_and_order_by_says_which_that_is(server: PostgresServer) -> None:
    ask(
        server,
        "ALTER TABLE t ADD PRIMARY KEY (id); ALTER TABLE t ADD other int DEFAULT 5; INSERT INTO t VALUES (1, 'old')",
    )
    for given, wanted in ((upsert(server), "a"), (upsert(server, order_by="text"), "z")):
        parts = [rows(1, text="z"), rows(1, text="b"), rows(1, text="a")]
        first = pa.concat_tables([pa.Table.from_batches(parts[:2])]).combine_chunks().to_batches()[0]
        handles = [prepare(given, first, slot=0), prepare(given, parts[2], slot=1)]
        # Not in the order of the slots.
        assert outcomes(finish(given, *reversed(handles))) == [COMMITTED, COMMITTED]
        assert ask(server, "SELECT * FROM t") == [(1, wanted, 5)]


@pytest.mark.parametrize("rule", [{"order_by": "at"}, {"update_when": "source.at >= target.at"}])
def test_an_older_row_of_a_later_batch_does_not_replace_a_newer_one(
    server: PostgresServer, rule: dict[str, str]
) -> None:
    ask(server, "CREATE TABLE newest (id bigint PRIMARY KEY, at bigint, text text)")
    given = sink(server, table="newest", mode="upsert", key_columns=["id"], **rule)
    for batch, (at, text) in enumerate([(5, "first"), (3, "late"), (5, "again"), (9, "last"), (8, "late")]):
        data = pa.record_batch({"id": [1], "at": [at], "text": [text]})
        assert outcomes(finish(given, prepare(given, data, batch=batch))) == [COMMITTED]
        expected = {0: "first", 1: "first", 2: "again"}.get(batch, "last")
        assert ask(server, "SELECT text FROM newest") == [(expected,)]


def test_a_null_is_older_than_any_value(server: PostgresServer) -> None:
    ask(server, "CREATE TABLE newest (id bigint PRIMARY KEY, at bigint, text text)")
    given = sink(server, table="newest", mode="upsert", key_columns=["id"], order_by="at")
    for batch, (at, expected) in enumerate([(None, "0"), (None, "1"), (4, "2"), (None, "2")]):
        data = pa.record_batch({"id": [1], "at": pa.array([at], pa.int64()), "text": [str(batch)]})
        finish(given, prepare(given, data, batch=batch))
        assert ask(server, "SELECT text FROM newest") == [(expected,)]


def test_a_row_without_a_value_deletes_the_tables_row_unless_it_is_older(server: PostgresServer) -> None:
    ask(server, 'CREATE TABLE newest (id bigint PRIMARY KEY, at bigint, "a value" text NOT NULL)')
    rule = {"order_by": "at", "delete_when": 'source."a value" IS NULL'}
    given = sink(server, table="newest", mode="upsert", key_columns=["id"], **rule)
    batches = [
        [(1, 5, "a"), (2, 5, "b"), (3, 5, "c"), (4, 5, None)],  # the last one is not there: nothing to do
        [(1, 4, None), (2, 6, None), (3, 6, "d"), (3, 7, None), (5, 7, None), (5, 8, "e")],
    ]
    for batch, values in enumerate(batches):
        at = [pa.array(column) for column in zip(*values, strict=True)]
        data = pa.record_batch(dict(zip(("id", "at", "a value"), at, strict=True)))
        handle = prepare(given, data, batch=batch)
        with closing(given.committer()) as committer:
            assert committer.check_prepared([handle]) == ""
            assert outcomes(committer.commit([handle])) == [COMMITTED]
    assert ask(server, "SELECT * FROM newest ORDER BY id") == [(1, 5, "a"), (5, 8, "e")]


def test_a_null_that_deletes_nothing_is_refused_before_the_decision(server: PostgresServer) -> None:
    ask(server, "CREATE TABLE newest (id bigint PRIMARY KEY, kind text, value text NOT NULL)")
    given = sink(server, table="newest", mode="upsert", key_columns=["id"], delete_when="source.kind = 'd'")
    data = pa.record_batch({"id": [1, 2], "kind": ["d", "u"], "value": pa.array([None, None], pa.string())})
    handle = prepare(given, data)
    with closing(given.committer()) as committer, pytest.raises(PrepareError, match="23502"):
        committer.check_prepared([handle])


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"update_when": "source.at > target.nothing"}, "PostgreSQL refuses update_when='source.at > target.nothing'"),
        ({"update_when": "source.at >"}, "PostgreSQL refuses update_when="),
        ({"delete_when": "source.at > 'x'"}, "PostgreSQL refuses delete_when="),
    ],
)
def test_a_condition_that_the_server_does_not_take_is_refused_at_the_start(
    server: PostgresServer, rule: dict[str, str], says: str
) -> None:
    ask(server, "CREATE TABLE newest (id bigint PRIMARY KEY, at bigint)")
    given = sink(server, table="newest", mode="upsert", key_columns=["id"], **rule)
    with pytest.raises(PreflightError) as refused:
        given.preflight(QUERY, None)
    assert says in refused.value.message


def test_on_conflict_nothing_keeps_what_is_there(server: PostgresServer) -> None:
    ask(server, "ALTER TABLE t ADD PRIMARY KEY (id); INSERT INTO t VALUES (1, 'old')")
    given = upsert(server, on_conflict="nothing")
    handles = [prepare(given, rows(1, 2, text="first")), prepare(given, rows(2, text="second"), slot=1)]
    assert outcomes(finish(given, *handles)) == [COMMITTED, COMMITTED]
    assert ask(server, "SELECT * FROM t ORDER BY id") == [(1, "old"), (2, "first")]


def test_a_table_of_keys_alone_is_upserted_too(server: PostgresServer) -> None:
    ask(server, "CREATE TABLE keys (a bigint, b text, PRIMARY KEY (b, a))")
    given = sink(server, table="keys", mode="upsert", key_columns=["a", "b"])
    for batch in range(2):
        data = pa.record_batch({"a": [1, 1, 2], "b": ["x", "x", "y"]})
        finish(given, prepare(given, data, batch=batch))
    assert ask(server, "SELECT * FROM keys ORDER BY a") == [(1, "x"), (2, "y")]


def test_upsert_without_transactions_is_repeatable(server: PostgresServer) -> None:
    ask(server, "ALTER TABLE t ADD PRIMARY KEY (id)")
    given = upsert(server, guarantee=Guarantee.AT_LEAST_ONCE)
    run = owner(given)
    for text in ("a", "b"):
        writer = open_writer(given, rows(1, 1, 2, text=text), run=run)
        assert writer.prepare() == {}
        writer.close()
        assert ask(server, "SELECT * FROM t ORDER BY id") == [(1, text), (2, text)]
    assert ask(server, "SELECT count(*) FROM pg_class WHERE relname = 'sparkonce_commits'") == [(0,)]


def test_many_slots_are_upserted_in_one_statement(server: PostgresServer) -> None:
    ask(server, "ALTER TABLE t ADD PRIMARY KEY (id)")
    given = upsert(server)
    run = owner(given)
    handles = [prepare(given, rows(slot, 1000), run=run, slot=slot) for slot in range(40)]
    assert outcomes(finish(given, *handles)) == [COMMITTED] * 40
    assert ids(server) == [*range(40), 1000]
    assert staging_tables(server) == []


def test_a_large_slot_goes_in_pieces(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparkonce.sinks.postgres import encode

    monkeypatch.setattr(encode, "LARGEST_PIECE_BYTES", 1000)
    given = sink(server, commit="two_phase")
    finish(given, prepare(given, rows(*range(5000), text="y" * 50)))
    assert ids(server) == list(range(5000))


def test_connections_are_used_again_and_not_hoarded(server: PostgresServer) -> None:
    given = sink(server, commit="two_phase")
    run = owner(given)
    handles = [prepare(given, rows(slot), run=run, slot=slot) for slot in range(20)]
    assert len(sessions(server)) == 1
    with closing(given.committer()) as committer:
        committer.commit(handles)
        assert len(sessions(server)) <= 1 + committer_module.AT_ONCE
    assert ask(server, sql.SQL("SELECT count(*) FROM t")) == [(20,)]
