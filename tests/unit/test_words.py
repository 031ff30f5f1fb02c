from __future__ import annotations

import logging

import psycopg
import pymysql
import pytest

from sparkonce.errors import MOST_CHARACTERS, one_line
from sparkonce.sinks.files.hdfs import of_error as of_hdfs_error
from sparkonce.sinks.files.s3.requests import refusal
from sparkonce.sinks.sql.mysql.connection import server_message as mysql_words
from sparkonce.sinks.sql.postgres.outcomes import server_message as postgres_words

FORGED = "a\r\n2026-11-23 sparkonce batch=99 committed\x1b[31m\x00\u2028\u202e\x9b"
AS_ONE = "a 2026-11-23 sparkonce batch=99 committed [31m"


def test_what_would_forge_a_line_of_a_log_is_taken_out() -> None:
    assert one_line(FORGED) == AS_ONE
    assert one_line(f"  {FORGED}\n") == AS_ONE
    assert one_line("ключ 'é' 🎉") == "ключ 'é' 🎉"

    assert one_line("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS
    assert one_line("x" * (MOST_CHARACTERS + 1)) == "x" * (MOST_CHARACTERS - 1) + "…"


def test_every_clients_words_come_in_one_line() -> None:
    said = [
        postgres_words(psycopg.OperationalError(FORGED.replace("\n", " "))),
        mysql_words(pymysql.err.OperationalError(1, FORGED)),
        refusal(type("E", (), {"response": {"Error": {"Code": "X", "Message": FORGED}}})()).reason,
        of_hdfs_error(RuntimeError(FORGED.replace("\n", " ")), "p").reason,
    ]
    assert all(AS_ONE in one and one.isprintable() for one in said)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("Duplicate entry '4111 1111' for key 'PRIMARY'", "Duplicate entry '…' for key 'PRIMARY'"),
        ("Duplicate entry 'o' for key 'x' for key 'k'", "Duplicate entry '…' for key 'k'"),
        ("Incorrect string value: '\\xE2' for column `d`.`t`.`c` at row 1", "Incorrect string value: '…' for column"),
        ("Truncated incorrect DOUBLE value: 'it's'", "Truncated incorrect DOUBLE value: '…'"),
        ("Data too long for column 'c' at row 1", "Data too long for column 'c' at row 1"),
    ],
)
def test_values_in_mariadbs_words_are_told_at_debug_only(
    words: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert mysql_words(pymysql.err.DataError(1, words)).startswith(shown)
    assert (words in caplog.text) is (shown not in words)
