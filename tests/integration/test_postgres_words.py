"""What PostgreSQL reports about rows, and which parts of it appear in messages and logs."""

from __future__ import annotations

import logging
import re

import pyarrow as pa
import pytest

from integration.postgres_scene import new_sink
from one_run import finish, prepare
from shared_servers import needs_postgres
from sparkonce.errors import PrepareError
from sparkonce.protocol.handles import Outcome
from sparkonce_lab.systems.postgres import PostgresSystem

pytestmark = needs_postgres


@pytest.fixture
def postgres(postgres: PostgresSystem) -> PostgresSystem:
    postgres.ask("CREATE TABLE t (id bigint, text text)")
    return postgres


def rows(*texts: str) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(range(len(texts)), pa.int64()), "text": list(texts)})


REFUSING = {
    "ALTER TABLE t ADD UNIQUE (text)": '23505 duplicate key value violates unique constraint "t_text_key"',
    "ALTER TABLE t ADD CHECK (text = 'x')": '23514 .* violates check constraint "t_text_check"',
    "CREATE TYPE mood AS ENUM ('x'); ALTER TABLE t ALTER text TYPE mood USING text::mood": '22P02 .* enum mood: "…"',
    "ALTER TABLE t ALTER text TYPE jsonb USING text::jsonb": "22P02 invalid input syntax for type json",
    "ALTER TABLE t ALTER text TYPE varchar(7)": "22001 .*varying\\(7\\)",
    "ALTER TABLE t ALTER text TYPE uuid USING text::uuid": "Column 'text' has a string that is not a UUID",
}


@pytest.mark.parametrize("change", REFUSING)
def test_what_a_row_holds_is_told_at_debug_only_and_forges_no_line(
    postgres: PostgresSystem, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    def told(log: pytest.LogCaptureFixture, level: int) -> str:
        return "\n".join(record.getMessage() for record in log.records if record.levelno >= level)

    card = "4111-1111-1111-1111"
    forged = f"{card}\n2026-11-23 sparkonce batch=99 committed\x1b[31m"
    postgres.ask(change)
    caplog.set_level(logging.DEBUG)
    for commit in ("two_phase", "staged"):
        given = new_sink(postgres, commit=commit)
        try:
            (found,) = finish(given, prepare(given, rows(forged, forged)))
            assert found.outcome is Outcome.UNKNOWN
            said = found.reason
        except PrepareError as error:
            said = str(error)
        assert re.search(REFUSING[change], said)
        assert "sparkonce_" not in said
        assert card not in said + told(caplog, logging.INFO)
        assert said.isprintable()
    assert "\x1b" not in told(caplog, logging.DEBUG)
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert (card in told(caplog, logging.DEBUG)) is ("t ADD" in change)
