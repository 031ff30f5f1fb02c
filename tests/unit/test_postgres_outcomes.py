from __future__ import annotations

import psycopg
import pytest

from sparkonce.protocol.handles import Outcome
from sparkonce.sinks.sql.postgres.outcomes import code_of, finished, prepare_error

NOT_LISTED = ["XX000", "58030", "42601", "2F002"]


def error(code: str) -> psycopg.Error:
    return psycopg.errors.lookup(code)("words") if code else psycopg.OperationalError("connection failed: why\nmore")


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        *(
            (code, Outcome.RETRY)
            for code in [
                "",
                *[
                    *("08006", "25006", "25P03", "25P04", "40001", "40P01", "53100", "53200", "53300", "55000"),
                    *("55P03", "57014", "57P01", "57P03"),
                ],
            ]
        ),
        *(
            (code, Outcome.UNKNOWN)
            for code in [
                *["0A000", "22P03", "23505", "23514", "28P01", "3D000", "42501", "42703", "42P01", "57P04", "P0001"],
                *NOT_LISTED,
            ]
        ),
    ],
)
def test_each_code_has_its_outcome_and_a_sentence(code, outcome):
    found = finished(error(code))
    assert found.outcome is outcome
    assert found.reason.startswith(f"{code} " if code else "connection failed: why.")
    assert found.reason.endswith(".")
    assert ("Unlisted answer" in found.reason) is (code in NOT_LISTED)


@pytest.mark.parametrize("code", ["", "22021", "23505", "25P03", "53200", "55P03", "57P01", "P0001", "XX000"])
def test_a_copy_that_cannot_be_prepared_says_what_to_do(code):
    found = prepare_error(error(code), "batch 1, slot 2")
    assert found.message.startswith("batch 1, slot 2: ")
    assert found.next_step
    assert found.details["sqlstate"] == code == code_of(error(code))
