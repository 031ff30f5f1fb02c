from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from sparkonce.errors import ConfigurationError, PreflightError, StaleServerError, UnknownOutcomeError
from sparkonce.protocol import horizon
from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sink import Owner
from sparkonce.sinks._shared import settings
from sparkonce.sinks._shared.arrow import bytes_of, cut, halves
from sparkonce.sinks._shared.committing import FOREIGN, NOTHING, Claims, Every, HandleCommitter, finish_each
from sparkonce.sinks._shared.error_table import UNLISTED, ErrorTable, Meaning
from sparkonce.sinks._shared.preflight import Attempts, check_same, refusal
from sparkonce.sinks.files import committer as files
from sparkonce.sinks.redis import committer as redis
from sparkonce.sinks.sql import dialect as sql
from sparkonce.sinks.sql.committer import SqlCommitter
from sparkonce.sinks.sql.dialect import Location, SqlTransaction
from sparkonce.sinks.sql.pool import IdlePool, has_nothing_to_read
from sparkonce.sinks.sql.postgres.dialect import POSTGRES_DIALECT
from sparkonce.sinks.sql.settings import Limits, named, with_source
from sparkonce.sinks.write_ahead import committer as write_ahead

COMMITTED = Finished(outcome=Outcome.COMMITTED)
ABORTED = Finished(outcome=Outcome.ABORTED)
SINKS_KEEP = {
    "files": files.KEPT_BATCHES,
    "redis": redis.KEPT_BATCHES,
    "sql": sql.KEPT_BATCHES,
    "write_ahead": write_ahead.KEEP_BATCHES,
}


@pytest.mark.parametrize("sink", SINKS_KEEP)
def test_no_sink_remembers_less_than_the_log(sink):
    """The log may hold `TIDY_EVERY_BATCHES` more batches than it keeps, and the one that is being decided."""
    assert SINKS_KEEP[sink] > horizon.KEEP_BATCHES + horizon.TIDY_EVERY_BATCHES
    assert SINKS_KEEP[sink] == horizon.SINKS_KEEP_BATCHES


TABLE = ErrorTable(
    {
        "": Meaning(Outcome.RETRY, "No answer."),
        "53": Meaning(Outcome.RETRY, "Full.", "free space.", outage=True),
        "53100": Meaning(Outcome.UNKNOWN, "The disk."),
        "X": Meaning(Outcome.LOST, "Gone."),
    },
    phrases=[("read only", Meaning(Outcome.RETRY, "A replica."))],
    class_lengths=(2,),
)


@pytest.mark.parametrize(
    ("code", "message", "wanted"),
    [
        ("", "timed out", "No answer."),
        ("53400", "words", "Full."),
        ("53100", "words", "The disk."),
        ("53100", "now read only", "A replica."),
        ("XX000", "words", UNLISTED.sentence),
    ],
)
def test_a_code_its_class_or_a_phrase_says_what_an_answer_means(code, message, wanted):
    assert TABLE.meaning(code, message).sentence == wanted


def test_an_answer_is_told_with_its_name_its_words_and_what_to_do():
    assert TABLE.finished("X", "words.").reason == "error X: words. Gone."
    assert TABLE.finished("53", "words", shown="53 words").reason == "53 words. Full."
    assert TABLE.finished("53", "words").next_step == "free space."

    found = TABLE.finished("XX000", "words")
    assert found.outcome is Outcome.UNKNOWN
    assert found.reason == "error XX000: words. Unlisted answer, so the outcome is unknown."


def handle(number: int | None, slot: int = 0) -> Handle:
    fields = {} if number is None else {"number": number}
    return Handle(sink="s", slot=slot, transaction=transaction_fields(fields))


def test_answers_come_in_the_order_of_the_handles():
    class Numbers(HandleCommitter[int]):
        """Transactions are numbers, one of which belongs to another query."""

        def __init__(self) -> None:
            self.calls: list[list[int]] = []

        def transaction_of(self, handle: Handle) -> int | Finished:
            number = int(handle["number"])
            return FOREIGN if number == 13 else number

        def commit_all(self, wanted: Mapping[int, Handle]) -> Mapping[int, Finished]:
            self.calls.append(list(wanted))
            return {one: Finished(outcome=Outcome.COMMITTED, reason=str(one)) for one in reversed(wanted)}

        def abort_all(self, wanted: Mapping[int, Handle]) -> Mapping[int, Finished]:
            return dict.fromkeys(wanted, ABORTED)

        def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
            raise NotImplementedError

    committer = Numbers()
    found = committer.commit([handle(2), handle(None), handle(13), handle(1), handle(2, slot=1)])
    assert [one.reason for one in found] == ["2", NOTHING.reason, FOREIGN.reason, "1", "2"]
    assert committer.calls == [[2, 1]]
    assert committer.abort([handle(13), handle(1)]) == [FOREIGN, ABORTED]

    committer = Numbers()
    assert committer.commit([handle(None)]) == [NOTHING]
    assert committer.commit([]) == []
    assert committer.calls == []

    every = Every(20)
    assert every.is_due(0)
    every.done(7)
    assert not every.is_due(26)
    assert every.is_due(27)


def test_no_more_are_finished_at_once_than_allowed():
    running, most, lock = 0, 0, threading.Lock()

    def finish(one: int) -> Finished:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1
        return Finished(outcome=Outcome.COMMITTED, reason=str(one))

    found = finish_each(range(20), finish, at_once=3)
    assert [(one, found[one].reason) for one in found] == [(one, str(one)) for one in range(20)]
    assert most == 3
    assert finish_each([], finish, at_once=3) == {}


class ServerError(Exception):
    """The error that the client raises."""


@dataclass
class Session:
    has: set[int]
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@dataclass
class Server:
    has: set[int] = field(default_factory=set)
    sessions: list[Session] = field(default_factory=list)
    fails: bool = False


def connect(server: Server, *_: object) -> Session:
    if server.fails:
        raise ServerError("away")
    server.sessions.append(Session(server.has))
    return server.sessions[-1]


def finish(session: Session, one: SqlTransaction, commit: bool, _: float) -> Finished:
    if not commit:
        return ABORTED
    session.has.add(one.name.batch)
    return COMMITTED


def database(server: Server) -> SqlCommitter:
    dialect = replace(
        POSTGRES_DIALECT,
        tidy=lambda *_: None,
        errors=(ServerError,),
        connect=connect,
        is_idle=lambda session: not session.closed and session.has is server.has,
        within=lambda *_: threading.Lock(),
        finished=lambda error: Finished(outcome=Outcome.RETRY, reason=f"{error}."),
        not_committed=lambda session, names, _: [name for name in names if name.batch not in session.has],
        finish_prepared=finish,
        end_writers=lambda *_: True,
    )
    return SqlCommitter(dialect, server, "s", server="The server", limits=Limits(answer_s=1.0))


def prepared(batch: int) -> Handle:
    name = TransactionName(prefix="p", query="0" * 12, token=Token(0, "0" * 8), batch=batch, slot=0, copy="0" * 12)
    one = SqlTransaction(kind="two_phase", name=name, location=Location(server="1", database="d", schema="c"))
    return POSTGRES_DIALECT.fields.handle("s", one)


def test_a_session_is_used_again_and_closed_after_an_error():
    server = Server()
    committer = database(server)
    assert committer.commit([prepared(1)]) == [COMMITTED]
    assert committer.abort([prepared(3)]) == [ABORTED]
    (session,) = server.sessions
    with pytest.raises(UnknownOutcomeError, match=r"The server did not report why: lost\."), committer.asking("why"):
        raise ServerError("lost")
    assert session.closed

    with committer.asking("this"), committer.asking("that"):
        pass
    with pytest.raises(UnknownOutcomeError), committer.asking("why"):
        raise ServerError("lost")
    assert [one.closed for one in server.sessions] == [True, True, True]

    committer = database(Server(fails=True))
    assert committer.commit([prepared(1)])[0].outcome is Outcome.RETRY
    assert committer.abort([prepared(1)])[0].outcome is Outcome.RETRY


def test_a_new_session_without_the_newest_commit_is_a_server_that_went_back():
    server = Server()
    committer = database(server)
    committer.commit([prepared(1)])
    committer.conclude(0, [prepared(1), Handle(sink="s", slot=1)])
    committer.conclude(0, [Handle(sink="s", slot=1)])
    server.has = {1}
    assert committer.commit([prepared(2)]) == [COMMITTED]
    server.has = set()
    with pytest.raises(StaleServerError):
        committer.commit([prepared(3)])
    assert server.sessions[-1].closed

    server = Server(has={1})
    committer = database(server)
    assert list(committer.missing([prepared(1), prepared(2)])) == [prepared(2)]
    server.has = {2}
    assert committer.commit([prepared(5)]) == [COMMITTED]
    assert list(committer.missing([prepared(2)])) == []
    server.has = set()
    with pytest.raises(StaleServerError):
        committer.missing([prepared(2)])


def test_so_many_are_kept_and_the_others_closed():
    def pool(server: Server, most: int = 2) -> IdlePool[Session]:
        def connect() -> Session:
            server.sessions.append(Session(server.has))
            return server.sessions[-1]

        return IdlePool(connect, is_idle=lambda one: not one.closed and one.has is server.has, most=most)

    server = Server()
    kept = pool(server)
    for one in [kept.take() for _ in range(3)]:
        kept.give_back(one)
    assert [one.closed for one in server.sessions] == [False, False, True]
    kept.drop()
    assert all(one.closed for one in server.sessions)

    server = Server()
    kept = pool(server)
    kept.give_back(kept.take())
    server.has = set()
    with kept.lent() as lent:
        assert lent is server.sessions[1]
    assert [one.closed for one in server.sessions] == [True, False]

    server = Server()
    kept = pool(server)
    with kept.lent() as late:
        kept.close()
    assert late.closed

    here, there = socket.socketpair()
    assert has_nothing_to_read(here.fileno())
    there.close()
    assert not has_nothing_to_read(here.fileno())
    number = here.fileno()
    here.close()
    assert not has_nothing_to_read(number)


def test_names_are_compared_field_by_field():
    token, other = Token(3, "a" * 8), Token(4, "b" * 8)
    claims = Claims([Owner(query="q" * 12, token=token, facts={"prefix": "orders"}), Owner(query="r", token=token)])

    def named(prefix: str = "orders", query: str = "q" * 12, run: Token = token) -> TransactionName:
        return TransactionName(prefix=prefix, query=query, token=run, batch=1, slot=0, copy="c" * 12)

    assert claims.has(named())
    assert not any(map(claims.has, (named("orders-eu"), named(query="p" * 12), named(run=other), named("", "r"))))
    assert (list(claims), len(claims), claims.queries) == ([("orders", "q" * 12)], 1, ["q" * 12])
    assert not Claims([Owner(query="r", token=token)])


@pytest.mark.parametrize(("prefix", "name"), [("", "s"), ("p" * 60, "s" * 10), ("a\nb", "s"), ("a", "\0"), (1, "s")])
def test_a_prefix_that_no_server_would_keep_is_refused(prefix, name):
    with pytest.raises(ConfigurationError, match="prefix="):
        settings.name_prefix(prefix, name, most_bytes=64)


def test_refusals_of_a_preflight():
    found = refusal("fsync", "off", "rows may be lost", "set it.")
    assert (found.message, found.next_step, found.details) == (
        "fsync=off: rows may be lost.",
        "set it.",
        {"setting": "fsync"},
    )

    check_same("database", "a", None, "database", "{before}", "{before}")
    check_same("database", "a", {"database": "a"}, "database", "{before}", "{before}")
    with pytest.raises(PreflightError, match="database='b': it was 'a'") as refused:
        check_same("database", "b", {"database": "a"}, "database", "it was {before}", "name {before}.")
    assert refused.value.next_step == "name 'a'."

    attempts = Attempts((ServerError,), lambda error: f"says {error}")
    with pytest.raises(PreflightError, match="Writing failed: says no") as refused, attempts.of("Writing", "grant."):
        raise ServerError("no")
    assert (refused.value.next_step, refused.value.details) == ("grant.", {})
    with pytest.raises(KeyError), attempts.of("Writing", "grant."):
        raise KeyError("x")


@pytest.mark.parametrize("most", [1, 100, 10_000])
def test_halves_have_all_rows_in_order(most):
    rows = pa.record_batch({"n": list(range(100))})
    found = list(halves(rows, most))
    assert [one for piece in found for one in piece.column(0).to_pylist()] == list(range(100))
    assert all(piece.nbytes <= most or piece.num_rows == 1 for piece in found)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
@pytest.mark.parametrize("most", [1, 10, 1000])
def test_a_cut_array_has_all_bytes_but_the_last_of_each_piece(kind, most):
    values = pa.array(["zero,", "one,", "two,", "three,", "four,"], pa.string()).cast(kind).slice(1)
    found = [bytes(piece) for piece in cut(values, most, without_last=1)]
    assert b",".join(found) == b"one,two,three,four"
    assert all(len(piece) < most or b"," not in piece for piece in found)
    assert bytes(bytes_of(values)) == b"one,two,three,four,"
    assert list(cut(values.slice(4), most)) == []
    assert bytes(bytes_of(values.slice(4))) == b""


CONDITION = """source.at >= target."At" AND 'source.x' <> source . "weird ""q" -- source.y
 AND /* source.z */ x.source.k = SOURCE.Big AND my_source.a = E'it\\'s source.b' AND `source.c` > source.`d`"""


def test_columns_that_a_condition_reads():
    assert named(CONDITION) == [
        ("source", "at"),
        ("target", "At"),
        ("source", 'weird "q'),
        ("source", "big"),
        ("source", "d"),
    ]


def test_the_batchs_row_gets_another_name_and_nothing_else_does():
    assert with_source(CONDITION, "EXCLUDED") == (
        """EXCLUDED.at >= target."At" AND 'source.x' <> EXCLUDED . "weird ""q" -- source.y
 AND /* source.z */ x.source.k = EXCLUDED.Big AND my_source.a = E'it\\'s source.b' AND `source.c` > EXCLUDED.`d`"""
    )
