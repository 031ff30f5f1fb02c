from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator

import psycopg
import pymysql
import pytest

from sparkonce import errors
from sparkonce.driver.stops import stop_error
from sparkonce.errors import MOST_CHARACTERS, SparkonceError, one_line
from sparkonce.protocol.effects import Stop, StopReason
from sparkonce.sinks.files.hdfs import of_error as of_hdfs_error
from sparkonce.sinks.files.s3.requests import refusal
from sparkonce.sinks.sql.mysql.connection import server_message as mysql_words
from sparkonce.sinks.sql.postgres.outcomes import server_message as postgres_words


def tree(kind: type[SparkonceError] = SparkonceError) -> Iterator[type[SparkonceError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


ALL = [kind for kind in tree() if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_errors_cross_processes(kind):
    error = kind("a=1 is wrong.", next_step="set a=2", batch=7, lost=(("memory", 1, 2),))
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled on the same line
    assert type(copy) is kind
    assert (copy.message, copy.next_step, copy.details) == (error.message, error.next_step, error.details)
    assert str(copy) == str(error) == "a=1 is wrong. Next: Set a=2."


@pytest.mark.parametrize("reason", list(StopReason), ids=lambda reason: reason.name)
def test_every_reason_to_stop_is_an_error_that_says_what_to_do(reason):
    details = (("lost", ()), ("differing", ()), ("same_rows", False), ("offsets", ()))
    error = stop_error(Stop(reason=reason, message="this happened", details=details), 5)
    assert error.message.startswith("this happened")
    assert error.next_step
    assert error.details["batch"] == 5
    assert type(pickle.loads(pickle.dumps(error))) is type(error)  # noqa: S301 - pickled on the same line


@pytest.mark.parametrize(
    ("said", "step", "told"),
    [
        ("no sink is called 'a'", "give one of ['b']", "No sink is called 'a'. Next: Give one of ['b']."),
        ("topic holds a space", "pip install x", "topic holds a space. Next: pip install x."),
        ("a_b=1: must be 2", "a.b is", "a_b=1: must be 2. Next: a.b is."),
        ("Why?\n", "", "Why?"),
        ("", "", ""),
    ],
)
def test_what_is_told_is_sentences(said, step, told):
    assert str(errors.ConfigurationError(said, next_step=step, setting="topic")) == told
    assert str(errors.PrepareError("slot 1 failed", next_step="look")) == "slot 1 failed. Next: Look."


FORGED = "a\r\n2026-11-23 sparkonce batch=99 committed\x1b[31m\x00\u2028\u202e\x9b"
AS_ONE = "a 2026-11-23 sparkonce batch=99 committed [31m"


def test_what_would_forge_a_line_of_a_log_is_taken_out():
    assert one_line(FORGED) == AS_ONE
    assert one_line(f"  {FORGED}\n") == AS_ONE
    assert one_line("ключ 'é' 🎉") == "ключ 'é' 🎉"

    assert one_line("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS
    assert one_line("x" * (MOST_CHARACTERS + 1)) == "x" * (MOST_CHARACTERS - 1) + "…"


def test_every_clients_words_come_in_one_line():
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
def test_values_in_mariadbs_words_are_told_at_debug_only(words, shown, caplog):
    with caplog.at_level(logging.DEBUG):
        assert mysql_words(pymysql.err.DataError(1, words)).startswith(shown)
    assert (words in caplog.text) is (shown not in words)
