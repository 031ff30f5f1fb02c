from __future__ import annotations

import pickle
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from psycopg.errors import ProtocolViolation

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks.sql.dialect import Location, SqlTransaction
from sparkonce.sinks.sql.postgres.connection import warn_of_wire
from sparkonce.sinks.sql.postgres.dialect import POSTGRES_DIALECT
from sparkonce.sinks.sql.postgres.preflight import _check_transactions
from sparkonce.sinks.sql.postgres.settings import BackendName, Conninfo, staging_table
from sparkonce.sinks.sql.postgres.sink import PostgresSink
from sparkonce.sinks.sql.settings import Target

LONGEST = TransactionName(
    prefix="p" * 100, query="0123456789ab", token=Token(10**19 - 1, "f" * 8), batch=10**18, slot=10**8, copy="c" * 12
)


def test_the_longest_names_fit_what_the_server_keeps():
    assert len(str(LONGEST).encode()) < 200
    assert len(str(BackendName.of(LONGEST))) == 63
    assert len(staging_table(LONGEST)) <= 63

    name = BackendName.parse(str(BackendName.of(LONGEST)))
    assert name == BackendName.of(LONGEST)
    tokens = frozenset({LONGEST.token})
    assert name.belongs_to(LONGEST.prefix, LONGEST.query, tokens)
    assert not name.belongs_to(LONGEST.prefix + "-eu", LONGEST.query, tokens)
    assert not name.belongs_to(LONGEST.prefix, "0123456789ac", tokens)
    assert not name.belongs_to(LONGEST.prefix, LONGEST.query, frozenset({Token(10**19 - 1, "0" * 8)}))


@pytest.mark.parametrize("text", ["", "psql", "sparkonce", "so.x", str(BackendName.of(LONGEST))[:-1], f" {LONGEST}"])
def test_other_peoples_sessions_are_nobodys(text):
    assert BackendName.parse(text) is None


def test_a_target_is_read_back_as_it_was_written_down():
    target = Target(schema="s", table='t"', mode="upsert", keys=("a", "b"), on_conflict="nothing")
    assert Target.from_text(target.to_text(("a", "b", "c"))) == (target, ("a", "b", "c"))
    for broken in ("", "{}", "[]", '{"columns": [], "keys": [], "other": 1}'):
        with pytest.raises(ValueError, match=r"Expecting|not the description"):
            Target.from_text(broken)

    location = Location(server="1", database="d", schema="c")
    one = SqlTransaction(kind="staged", name=LONGEST, location=location)
    fields = POSTGRES_DIALECT.fields
    assert fields.read(fields.write(one)) == one
    assert fields.read(dict(fields.handle("s", one).transaction)) == one
    for other in ({}, {"commit": "other"}, {"name": "psql"}, {"more": 1}):
        assert fields.read({**fields.write(one), **other} if other else {}) is None


def test_libpqs_settings_are_filled_up_and_never_shown():
    to = Conninfo.of("postgresql://u:secret@h:1/d?connect_timeout=3")
    known = dict(to.settings)
    assert (known["password"], known["connect_timeout"], known["client_encoding"]) == ("secret", "3", "UTF8")
    assert (str(to), repr(to)) == ("host=h port=1 dbname=d user=u", "Conninfo(host=h port=1 dbname=d user=u)")
    assert pickle.loads(pickle.dumps(to)) == to  # noqa: S301 - pickled on the same line
    with pytest.raises(ConfigurationError, match="client_encoding='latin1'"):
        Conninfo.of({"client_encoding": "latin1"})


def test_conditions_say_what_each_way_asks_of_the_server_and_its_readers():
    staged, two_phase = (PostgresSink("dbname=x", table="t", commit=one) for one in ("staged", "two_phase"))
    assert any("unique index" in one for one in staged.conditions())
    assert any("max_prepared_transactions" in one for one in two_phase.conditions())


def test_a_pooler_of_statements_is_refused_and_a_pooler_without_a_server_is_not_taken_for_one():
    request = Mock(conninfo="host=pooler")
    words = "transaction blocks not allowed in statement pooling mode"
    refusing = Mock(**{"execute.side_effect": ProtocolViolation(words)})
    with pytest.raises(PreflightError, match="host=pooler takes no transactions: 08P01") as caught:
        _check_transactions(refusing, request)
    assert caught.value.next_step.startswith("Set pool_mode=transaction or session in PgBouncer")
    away = Mock(**{"execute.side_effect": ProtocolViolation("query_wait_timeout")})
    with pytest.raises(ProtocolViolation):
        _check_transactions(away, request)


def is_warned_of(caplog: pytest.LogCaptureFixture, **given: bytes) -> bool:
    info = [SimpleNamespace(keyword=name.encode(), val=value) for name, value in given.items()]
    warn_of_wire(SimpleNamespace(pgconn=SimpleNamespace(info=info, ssl_in_use=True)))
    return "sslmode=" in caplog.text


@pytest.mark.parametrize(
    ("host", "warned"),
    [
        (b"localhost", False),
        (b"127.0.0.1", False),
        (b"/var/run/postgresql", False),
        (b"", False),
        (b"localhost,127.0.0.1", False),
        (b"localhost,db2", True),
        (b"localhost.example", True),
        (b"db", True),
    ],
)
def test_only_other_machines_are_warned_of(caplog, host, warned):
    assert is_warned_of(caplog, host=host, sslmode=b"prefer") is warned


def test_a_server_that_must_prove_who_it_is_is_not(caplog):
    assert not is_warned_of(caplog, host=b"db", sslmode=b"verify-full")

    caplog.clear()
    assert is_warned_of(caplog, host=b"db", sslmode=b"prefer", password=b"\xff")
