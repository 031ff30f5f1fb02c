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

from integration.postgres_scene import new_sink
from one_run import QUERY, finish, open_writer, outcomes, owner, prepare
from shared_servers import needs_postgres
from sparkonce.errors import PreflightError, PrepareError, SchemaError, UnknownOutcomeError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.sinks.sql.committer import AT_ONCE
from sparkonce.sinks.sql.dialect import KEPT_BATCHES
from sparkonce.sinks.sql.pool import IdlePool
from sparkonce.sinks.sql.postgres import finishing
from sparkonce.sinks.sql.postgres.connection import connect, is_idle
from sparkonce.sinks.sql.postgres.settings import Conninfo
from sparkonce.sinks.sql.postgres.sink import PostgresSink
from sparkonce.sinks.sql.settings import Limits
from sparkonce_lab.systems.postgres import PostgresSystem

pytestmark = needs_postgres

both = pytest.mark.parametrize("commit", ["two_phase", "staged"])

COMMITTED, ALREADY, ABORTED = Outcome.COMMITTED, Outcome.ALREADY_COMMITTED, Outcome.ABORTED
RETRY, LOST, UNKNOWN = Outcome.RETRY, Outcome.LOST, Outcome.UNKNOWN


sink = partial(new_sink, lock_timeout_s=0.5)


@pytest.fixture
def postgres(postgres) -> PostgresSystem:
    postgres.ask("CREATE TABLE t (id bigint, text text)")
    return postgres


def rows(*ids: int, text: str = "x") -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "text": [text] * len(ids)})


def ids(postgres: PostgresSystem) -> list[int]:
    return [one for (one,) in postgres.ask("SELECT id FROM t ORDER BY id")]


# --- what the table rejects -------------------------------------------------------------------------------------------

REFUSALS = {
    "23505": "ALTER TABLE t ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED",
    "P0001": """
        CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not at this hour'; END $$;
        CREATE CONSTRAINT TRIGGER no AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION no()""",
}


@pytest.mark.parametrize("code", REFUSALS)
def test_what_is_checked_at_prepare_fails_there_in_the_servers_words(postgres, code):
    postgres.ask(REFUSALS[code])
    with pytest.raises(PrepareError, match=f"Batch 0, slot 0, .*: {code} "):
        prepare(sink(postgres, commit="two_phase"), rows(1, 1))
    assert postgres.prepared() == []
    assert ids(postgres) == []


def test_a_trigger_that_notifies_cannot_be_prepared(postgres):
    postgres.ask(
        "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_notify('x', 'y'); RETURN NEW; END $$; "
        "CREATE TRIGGER tell AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION tell()",
    )
    with pytest.raises(PrepareError, match=r"0A000 .*commit='staged'"):
        prepare(sink(postgres, commit="two_phase"), rows(1))
    given = sink(postgres)
    assert outcomes(finish(given, prepare(given, rows(1)))) == [COMMITTED]


@both
def test_checks_and_not_null_are_refused_before_the_decision(postgres, commit):
    postgres.ask("ALTER TABLE t ALTER id SET NOT NULL; ALTER TABLE t ADD CHECK (text <> 'bad')")
    given = sink(postgres, commit=commit)
    for batch, code in ((rows(1, text="bad"), "23514"), (pa.record_batch({"id": [None], "text": ["x"]}), "23502")):
        typed = batch.set_column(0, "id", batch.column(0).cast(pa.int64()))
        with pytest.raises(PrepareError, match=code):
            prepare(given, typed)
    assert (postgres.stages(), postgres.prepared()) == ([], [])


def test_staged_rows_that_the_table_refuses_wait_for_the_operator(postgres):
    """They are decided but neither visible nor lost. Once the table accepts them, the same handle commits."""
    postgres.ask("ALTER TABLE t ADD CONSTRAINT one UNIQUE (id); INSERT INTO t VALUES (2)")
    given = sink(postgres)
    handles = [prepare(given, rows(1), slot=0), prepare(given, rows(2), slot=1)]
    found = finish(given, *handles)
    assert outcomes(found) == [UNKNOWN, UNKNOWN]
    assert "23505" in found[0].reason
    assert "--on-conflict nothing" in found[0].next_step
    assert ids(postgres) == [2]
    postgres.ask("ALTER TABLE t DROP CONSTRAINT one")
    assert outcomes(finish(given, *handles)) == [COMMITTED, COMMITTED]
    assert ids(postgres) == [1, 2, 2]


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(
    "change", ["TRUNCATE {}", "DELETE FROM {} WHERE id = 3", "INSERT INTO {} VALUES (9, 'not ours')"]
)
def test_a_staging_table_that_was_changed_is_not_moved(postgres, mode, change):
    """No other table of the batch is moved either.

    Once its remains are dropped as advised, it counts as lost and is healed.
    """
    postgres.ask("ALTER TABLE t ADD PRIMARY KEY (id)")
    given = sink(postgres, mode=mode, key_columns=["id"]) if mode == "upsert" else sink(postgres)
    handles = [prepare(given, rows(1, 2), slot=0), prepare(given, rows(3, 4), slot=1)]
    name = str(handles[1]["name"])
    table = f"sparkonce_{QUERY}_{name.rpartition('.')[2]}"
    postgres.ask(change.format(table))
    for _ in range(2):
        found = finish(given, *handles)
        assert outcomes(found) == [UNKNOWN, UNKNOWN]
        assert table in found[0].reason
        assert name in found[0].reason
        assert "rows, and 2 were prepared" in found[0].reason
        assert (ids(postgres), len(postgres.stages())) == ([], 2)
    postgres.ask(f"BEGIN; DROP TABLE {table}; DELETE FROM sparkonce_commits WHERE name = '{name}'; COMMIT")  # noqa: S608
    assert outcomes(finish(given, *handles)) == [COMMITTED, LOST]
    assert ids(postgres) == [1, 2]


def test_a_staging_table_cannot_be_changed_between_the_count_and_the_commit(postgres, monkeypatch):
    given = sink(postgres)
    handle = prepare(given, rows(1, 2))
    (table,) = postgres.stages()
    end = finishing._end

    def late(*args: Any) -> None:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            postgres.ask(f"SET lock_timeout = 1; DELETE FROM {table}")  # noqa: S608
        end(*args)

    monkeypatch.setattr(finishing, "_end", late)
    assert outcomes(finish(given, handle)) == [COMMITTED]
    assert ids(postgres) == [1, 2]


def test_a_second_try_waits_for_the_first_ones_key_and_then_gives_up(postgres):
    """This is why upserts are staged, and why preflight warns about unique indexes."""
    postgres.ask("ALTER TABLE t ADD UNIQUE (id)")
    given = sink(postgres, commit="two_phase")
    first = prepare(given, rows(1))
    with pytest.raises(PrepareError, match=r"55P03.*sparkonce transactions list --system postgres"):
        prepare(given, rows(1))
    finish(given, first, commit=False)
    staged = sink(postgres)
    tries = [prepare(staged, rows(1)) for _ in range(2)]
    assert outcomes(finish(staged, tries[1])) == [COMMITTED]


@both
def test_a_column_that_changes_its_type_while_rows_are_written_is_noticed(postgres, commit):
    """Eight bytes of a bigint are eight bytes of a double to COPY in binary."""
    given = sink(postgres, commit=commit)
    run = owner(given)
    fine = prepare(given, rows(1), run=run)
    finish(given, fine)
    postgres.ask("ALTER TABLE t ALTER id TYPE double precision")
    with pytest.raises(Exception, match="'id' is bigint, and in the table double precision"):
        prepare(given, rows(2), run=run, batch=1)
    assert postgres.ask("SELECT id FROM t") == [(1.0,)]


def test_a_table_that_changes_under_a_staged_copy_is_noticed(postgres):
    given = sink(postgres)
    writer = open_writer(given, rows(1))
    postgres.ask("ALTER TABLE t ALTER id TYPE double precision")
    with pytest.raises(PrepareError, match="was changed while the batch was written"):
        writer.prepare()
    writer.abort()
    assert postgres.stages() == []


# --- who finishes what ------------------------------------------------------------------------------------------------


@both
def test_a_batch_of_many_slots_is_committed_by_two_drivers_at_once(postgres, commit):
    given = sink(postgres, commit=commit, lock_timeout_s=30)
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
    assert ids(postgres) == list(range(12))
    assert (postgres.stages(), postgres.prepared()) == ([], [])


def test_a_staged_batch_is_seen_as_a_whole_or_not_at_all(postgres):
    """A lock on the markers delays the commit. Readers see nothing, and the second driver is told to retry."""
    given = sink(postgres)
    handles = [prepare(given, rows(slot), slot=slot) for slot in range(3)]
    with psycopg.connect(postgres.server.conninfo()) as other:
        other.execute("SELECT FROM sparkonce_commits WHERE name = %s FOR UPDATE", (str(handles[2]["name"]),))
        assert outcomes(finish(given, *handles)) == [RETRY] * 3
        assert outcomes(finish(given, *handles, commit=False)) == [RETRY] * 3
        assert ids(postgres) == []
    assert outcomes(finish(given, *handles)) == [COMMITTED] * 3
    assert ids(postgres) == [0, 1, 2]


@both
def test_other_peoples_transactions_and_tables_are_never_touched(postgres, commit):
    given = sink(postgres, commit=commit)
    run = owner(given)
    ours = prepare(given, rows(1), run=run)
    name = str(ours["name"])
    strangers = ["theirs", f"x{name}", name.replace("sparkonce.postgres", "sparkonce.postgres-eu"), f"{name}.1"]
    for gid in strangers:
        postgres.ask(sql.SQL("BEGIN; INSERT INTO t VALUES (9); PREPARE TRANSACTION {}").format(gid))
    postgres.ask("CREATE TABLE sparkonce_0123456789ab_ffffffffffff (id int)")
    with closing(given.committer()) as committer:
        lingering = list(committer.list_lingering([run]))
        assert [one["name"] for one in lingering] == [name]
        committer.abort(lingering)
    assert postgres.prepared() == sorted(strangers)
    assert postgres.stages() == ["sparkonce_0123456789ab_ffffffffffff"]


@both
def test_a_handle_of_an_older_mode_is_still_committed(postgres, commit):
    """The query was restarted with the other setting."""
    handle = prepare(sink(postgres, commit=commit), rows(1))
    other = sink(postgres, commit="staged" if commit == "two_phase" else "two_phase")
    assert outcomes(finish(other, handle)) == [COMMITTED]
    assert ids(postgres) == [1]


def test_a_handle_names_its_own_table(postgres):
    """The query was restarted with another table. Decided rows go to the original one."""
    handle = prepare(sink(postgres), rows(1))
    postgres.ask("CREATE TABLE other (id bigint, text text)")
    assert outcomes(finish(sink(postgres, table="other"), handle)) == [COMMITTED]
    assert ids(postgres) == [1]


@both
def test_a_writer_of_an_older_run_that_wakes_up_is_found_and_ended(postgres, commit):
    """Its session shows its run; once ended, it can neither write nor prepare."""
    given = sink(postgres, commit=commit)
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
    assert len(postgres.prepared()) + len(postgres.stages()) == 1


# --- what the server does ---------------------------------------------------------------------------------------------


@both
def test_a_server_that_is_away_is_asked_again(postgres, commit):
    given = sink(postgres, commit=commit)
    handles = [prepare(given, rows(slot), slot=slot) for slot in range(2)]
    run = owner(given)
    with closing(given.committer()) as committer:
        assert outcomes(list(committer.commit(handles[:1]))) == [COMMITTED]
        postgres.server.kill()
        try:
            assert outcomes(list(committer.commit(handles))) == [RETRY, RETRY]
            assert outcomes(list(committer.abort(handles))) == [RETRY, RETRY]
            for call in (lambda: committer.list_lingering([run]), lambda: committer.list_traces(QUERY, run.facts)):
                with pytest.raises(UnknownOutcomeError):
                    call()
        finally:
            postgres.server.start()
            postgres.close()
        assert outcomes(list(committer.commit(handles))) == [ALREADY, COMMITTED]
    assert ids(postgres) == [0, 1]


@both
def test_a_server_that_stands_still_is_not_waited_for_beyond_the_deadline(postgres, commit):
    given = sink(postgres, commit=commit)
    handle = prepare(given, rows(1))
    given.limits = Limits(commit_s=0.5, answer_s=0.5)
    with closing(given.committer()) as committer:
        assert list(committer.list_lingering([])) == []
        committer.list_traces(QUERY, owner(given).facts)
        pids = sessions(postgres)
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            assert outcomes(list(committer.commit([handle]))) == [RETRY]
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        found = outcomes(list(committer.commit([handle])))
        while found == [RETRY]:
            found = outcomes(list(committer.commit([handle])))
        assert found[0] in (COMMITTED, ALREADY)
    assert ids(postgres) == [1]


def test_a_connection_that_comes_back_after_the_others_were_closed_is_closed(postgres):
    """It was returned by a thread that nobody waits for anymore."""
    to = Conninfo.of(postgres.server.conninfo())
    connections = IdlePool(lambda: connect(to), is_idle=is_idle)
    with connections.lent(), connections.lent() as idle:
        pass
    assert not idle.closed
    with connections.lent() as late:
        connections.close()
    assert late is not idle
    assert late.closed
    assert idle.closed


def sessions(postgres: PostgresSystem) -> list[int]:
    return [
        pid
        for (pid,) in postgres.ask(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        )
    ]


@both
def test_markers_that_may_have_been_tidied_away_make_it_unknown(postgres, commit):
    given = sink(postgres, commit=commit)
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
    assert ids(postgres) == [1, late, late + 20]


@both
def test_markers_are_tidied_whichever_batches_have_rows(postgres, commit):
    given = sink(postgres, commit=commit)
    with closing(given.committer()) as committer:
        for batch in (1, 3, 303):
            handle = prepare(given, rows(batch), batch=batch)
            committer.commit([handle])
            committer.conclude(batch, [handle])
    assert postgres.ask("SELECT batch FROM sparkonce_commits") == [(303,)]


@both
def test_without_the_table_of_markers_nothing_is_called_lost(postgres, commit):
    given = sink(postgres, commit=commit)
    handle = prepare(given, rows(1))
    finish(given, handle)
    postgres.ask("ALTER TABLE sparkonce_commits RENAME TO away")
    (found,) = finish(given, handle)
    assert found.outcome is UNKNOWN
    assert "42P01" in found.reason


def test_a_role_that_may_not_finish_says_so(postgres):
    handle = prepare(sink(postgres, commit="two_phase"), rows(1))
    postgres.ask("DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN")
    other = PostgresSink(postgres.server.conninfo(user="plain"), table="t", commit="two_phase")
    (found,) = finish(other, handle)
    assert (found.outcome, "42501" in found.reason) == (UNKNOWN, True)
    assert postgres.prepared() == [handle["name"]]


# --- upsert -----------------------------------------------------------------------------------------------------------


def upsert(postgres: PostgresSystem, **more: Any) -> PostgresSink:
    return sink(postgres, mode="upsert", key_columns=["id"], **more)


def test_the_last_row_of_a_key_wins_and_order_by_says_which_that_is(postgres):
    postgres.ask(
        "ALTER TABLE t ADD PRIMARY KEY (id); ALTER TABLE t ADD other int DEFAULT 5; INSERT INTO t VALUES (1, 'old')",
    )
    for given, wanted in ((upsert(postgres), "a"), (upsert(postgres, order_by="text"), "z")):
        parts = [rows(1, text="z"), rows(1, text="b"), rows(1, text="a")]
        first = pa.concat_tables([pa.Table.from_batches(parts[:2])]).combine_chunks().to_batches()[0]
        handles = [prepare(given, first, slot=0), prepare(given, parts[2], slot=1)]
        # Not in the order of the slots.
        assert outcomes(finish(given, *reversed(handles))) == [COMMITTED, COMMITTED]
        assert postgres.ask("SELECT * FROM t") == [(1, wanted, 5)]


@pytest.mark.parametrize("rule", [{"order_by": "at"}, {"update_when": "source.at >= target.at"}])
def test_an_older_row_of_a_later_batch_does_not_replace_a_newer_one(postgres, rule):
    postgres.ask("CREATE TABLE newest (id bigint PRIMARY KEY, at bigint, text text)")
    given = sink(postgres, table="newest", mode="upsert", key_columns=["id"], **rule)
    for batch, (at, text) in enumerate([(5, "first"), (3, "late"), (5, "again"), (9, "last"), (8, "late")]):
        data = pa.record_batch({"id": [1], "at": [at], "text": [text]})
        assert outcomes(finish(given, prepare(given, data, batch=batch))) == [COMMITTED]
        expected = {0: "first", 1: "first", 2: "again"}.get(batch, "last")
        assert postgres.ask("SELECT text FROM newest") == [(expected,)]


def test_a_null_is_older_than_any_value(postgres):
    postgres.ask("CREATE TABLE newest (id bigint PRIMARY KEY, at bigint, text text)")
    given = sink(postgres, table="newest", mode="upsert", key_columns=["id"], order_by="at")
    for batch, (at, expected) in enumerate([(None, "0"), (None, "1"), (4, "2"), (None, "2")]):
        data = pa.record_batch({"id": [1], "at": pa.array([at], pa.int64()), "text": [str(batch)]})
        finish(given, prepare(given, data, batch=batch))
        assert postgres.ask("SELECT text FROM newest") == [(expected,)]


def test_a_row_without_a_value_deletes_the_tables_row_unless_it_is_older(postgres):
    postgres.ask('CREATE TABLE newest (id bigint PRIMARY KEY, at bigint, "a value" text NOT NULL)')
    rule = {"order_by": "at", "delete_when": 'source."a value" IS NULL'}
    given = sink(postgres, table="newest", mode="upsert", key_columns=["id"], **rule)
    batches = [
        [(1, 5, "a"), (2, 5, "b"), (3, 5, "c"), (4, 5, None)],  # the last one does not exist, so there is nothing to do
        [(1, 4, None), (2, 6, None), (3, 6, "d"), (3, 7, None), (5, 7, None), (5, 8, "e")],
    ]
    for batch, values in enumerate(batches):
        at = [pa.array(column) for column in zip(*values, strict=True)]
        data = pa.record_batch(dict(zip(("id", "at", "a value"), at, strict=True)))
        handle = prepare(given, data, batch=batch)
        with closing(given.committer()) as committer:
            assert committer.check_prepared([handle]) == ""
            assert outcomes(committer.commit([handle])) == [COMMITTED]
    assert postgres.ask("SELECT * FROM newest ORDER BY id") == [(1, 5, "a"), (5, 8, "e")]


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE])
def test_columns_that_only_say_whether_a_row_deletes_are_not_written(postgres, guarantee):
    """The table has neither `op` nor `Gone`, as change data capture has them. A null condition deletes nothing."""
    postgres.ask("CREATE TABLE newest (id bigint PRIMARY KEY, text text NOT NULL)")
    rule = "source.op = 'd' OR source.\"Gone\""
    given = sink(postgres, table="newest", mode="upsert", key_columns=["id"], delete_when=rule, guarantee=guarantee)
    batches: list[list[tuple[int, str | None, str | None, bool | None]]] = [
        [(1, "a", "c", False), (2, "b", None, None), (3, "c", "c", None)],
        [(1, None, "d", None), (2, "B", None, None), (3, "C", "u", True), (4, "d", "D", False)],
    ]
    for batch, values in enumerate(batches):
        ids, texts, ops, gone = zip(*values, strict=True)
        more = {"op": pa.array(ops, pa.string()), "Gone": pa.array(gone, pa.bool_())}
        data = pa.record_batch(
            {"Gone": more["Gone"], "id": ids, "text": pa.array(texts, pa.string()), "op": more["op"]}
        )
        assert given.columns(data.schema) == ["Gone", "id", "text", "op"]
        handle = prepare(given, data, batch=batch)
        if guarantee is Guarantee.EXACTLY_ONCE:
            with closing(given.committer()) as committer:
                assert committer.check_prepared([handle]) == ""
                assert outcomes(committer.commit([handle])) == [COMMITTED]
    assert postgres.ask("SELECT * FROM newest ORDER BY id") == [(2, "B"), (4, "d")]


def test_a_column_of_no_type_by_which_rows_delete_is_refused(postgres):
    postgres.ask("CREATE TABLE newest (id bigint PRIMARY KEY)")
    given = sink(postgres, table="newest", mode="upsert", key_columns=["id"], delete_when="source.ops IS NULL")
    given.columns(pa.schema([("id", pa.int64()), ("ops", pa.list_(pa.string()))]))
    with pytest.raises(SchemaError, match="Column 'ops', by which rows delete, is array<string>"):
        given.preflight(QUERY, None)


def test_a_null_that_deletes_nothing_is_refused_before_the_decision(postgres):
    postgres.ask("CREATE TABLE newest (id bigint PRIMARY KEY, kind text, value text NOT NULL)")
    given = sink(postgres, table="newest", mode="upsert", key_columns=["id"], delete_when="source.kind = 'd'")
    data = pa.record_batch({"id": [1, 2], "kind": ["d", "u"], "value": pa.array([None, None], pa.string())})
    handle = prepare(given, data)
    with closing(given.committer()) as committer, pytest.raises(PrepareError, match="23502"):
        committer.check_prepared([handle])


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"update_when": "source.at > target.nothing"}, "with update_when='source.at > target.nothing' failed: 42703"),
        ({"update_when": "source.at >"}, "with update_when="),
        ({"delete_when": "source.at > 'x'"}, "with delete_when="),
    ],
)
def test_a_condition_that_the_server_does_not_take_is_refused_at_the_start(postgres, rule, says):
    postgres.ask("CREATE TABLE newest (id bigint PRIMARY KEY, at bigint)")
    given = sink(postgres, table="newest", mode="upsert", key_columns=["id"], **rule)
    with pytest.raises(PreflightError) as refused:
        given.preflight(QUERY, None)
    assert says in refused.value.message


def test_on_conflict_nothing_keeps_what_is_there(postgres):
    postgres.ask("ALTER TABLE t ADD PRIMARY KEY (id); INSERT INTO t VALUES (1, 'old')")
    given = upsert(postgres, on_conflict="nothing")
    handles = [prepare(given, rows(1, 2, text="first")), prepare(given, rows(2, text="second"), slot=1)]
    assert outcomes(finish(given, *handles)) == [COMMITTED, COMMITTED]
    assert postgres.ask("SELECT * FROM t ORDER BY id") == [(1, "old"), (2, "first")]


def test_a_table_of_keys_alone_is_upserted_too(postgres):
    postgres.ask("CREATE TABLE keys (a bigint, b text, PRIMARY KEY (b, a))")
    given = sink(postgres, table="keys", mode="upsert", key_columns=["a", "b"])
    for batch in range(2):
        data = pa.record_batch({"a": [1, 1, 2], "b": ["x", "x", "y"]})
        finish(given, prepare(given, data, batch=batch))
    assert postgres.ask("SELECT * FROM keys ORDER BY a") == [(1, "x"), (2, "y")]


def test_upsert_without_transactions_is_repeatable(postgres):
    postgres.ask("ALTER TABLE t ADD PRIMARY KEY (id)")
    given = upsert(postgres, guarantee=Guarantee.AT_LEAST_ONCE)
    run = owner(given)
    for text in ("a", "b"):
        writer = open_writer(given, rows(1, 1, 2, text=text), run=run)
        assert writer.prepare() == {}
        writer.close()
        assert postgres.ask("SELECT * FROM t ORDER BY id") == [(1, text), (2, text)]
    assert postgres.ask("SELECT count(*) FROM pg_class WHERE relname = 'sparkonce_commits'") == [(0,)]


def test_a_large_slot_goes_in_pieces(postgres, monkeypatch):
    from sparkonce.sinks.sql.postgres import encoding

    monkeypatch.setattr(encoding, "LARGEST_PIECE_BYTES", 1000)
    given = sink(postgres, commit="two_phase")
    finish(given, prepare(given, rows(*range(5000), text="y" * 50)))
    assert ids(postgres) == list(range(5000))


def test_connections_are_used_again_and_not_hoarded(postgres):
    given = sink(postgres, commit="two_phase")
    run = owner(given)
    handles = [prepare(given, rows(slot), run=run, slot=slot) for slot in range(20)]
    assert len(sessions(postgres)) == 1
    with closing(given.committer()) as committer:
        committer.commit(handles)
        assert len(sessions(postgres)) <= 1 + AT_ONCE
    assert postgres.ask(sql.SQL("SELECT count(*) FROM t")) == [(20,)]
