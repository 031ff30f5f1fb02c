from __future__ import annotations

import logging

import pytest

from eventually import eventually
from sparkonce.sinks.kafka.batch_producer import OncePerBroker
from sparkonce.sinks.kafka.pooled_producer import PooledProducer


def shown(each: OncePerBroker, text: str) -> str:
    """Returns what is logged for a line; empty if nothing is."""
    record = logging.LogRecord("librdkafka", logging.ERROR, "", 0, text, (), None)
    return record.getMessage() if each.filter(record) else ""


def test_a_line_a_second_for_each_broker_and_kind_whichever_producer_says_it() -> None:
    refused_line = "FAIL [rdkafka#producer-%d] [thrd:%s/bootstrap]: %s: Connect failed: Connection refused (after %dms)"
    now = [0.0]
    each = OncePerBroker(lambda: now[0])
    for step in range(300):
        now[0] = step / 100
        lines = [shown(each, refused_line % (step % 7, broker, broker, step)) for broker in ("a:1", "b:2")]
        assert all(lines) is any(lines) is (step % 100 == 0)
        if step == 100:
            assert lines[0].endswith("(after 100ms) (99 like it left out)")
    assert shown(each, "GETPID [rdkafka#producer-1] [thrd:a:1/bootstrap]: retrying")


def test_what_has_another_form_is_told_apart_by_its_text() -> None:
    each = OncePerBroker(lambda: 0.0)
    assert [bool(shown(each, text)) for text in ("one", "other", "one")] == [True, True, False]


def test_producers_write_there_and_not_to_standard_error(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    pooled = PooledProducer({"bootstrap.servers": "127.0.0.1:1", "reconnect.backoff.ms": 1})
    eventually(lambda: pooled.poll(0.1) or caplog.records, "a line")
    pooled.destroy()
    assert {record.name for record in caplog.records} == {"sparkonce.librdkafka"}
    assert "Connection refused" in caplog.text
    assert "rdkafka#" not in capfd.readouterr().err
