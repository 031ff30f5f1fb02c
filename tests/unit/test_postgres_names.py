from __future__ import annotations

import pickle

import pytest

from sparkonce.errors import ConfigurationError
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks.sql.dialect import Location, SqlTransaction
from sparkonce.sinks.sql.postgres.dialect import POSTGRES_DIALECT
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
