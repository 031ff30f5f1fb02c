"""``sparkonce transactions list --system kafka``: every open transaction of ours is listed, and nothing is changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from integration.kafka_witness import Witness, new_name
from sparkonce.cli.main import app
from sparkonce.protocol.ownership import Token, TransactionalId

pytestmark = pytest.mark.kafka

QUERY = "0123456789ab"


def listed(bootstrap: str, *more: str) -> list[dict[str, Any]]:
    command = [
        "transactions",
        "list",
        "--system",
        "kafka",
        "--settings",
        f"bootstrap.servers={bootstrap}",
        "--json",
        *more,
    ]
    found: list[dict[str, Any]] = json.loads(CliRunner().invoke(app, command).output)
    return found


def test_open_transactions_are_listed_with_their_age_and_what_they_hold_back(witness: Witness) -> None:
    topic, prefix = witness.create_topic(), new_name("orders")
    name = TransactionalId(prefix=prefix, query=QUERY, token=Token(3, "0badcafe"), worker="a" * 12, lane=0)
    theirs = witness.prepare(topic, "a", transactional_id=new_name("theirs"))
    ours = witness.prepare(topic, "b", transactional_id=str(name))
    (one,) = [one for one in listed(witness.bootstrap) if one["name"].startswith(prefix)]
    assert (one["name"], one["query"], one["run"], one["kind"]) == (str(name), QUERY, "3-0badcafe", "open")
    assert (one["batch"], one["slot"], one["timeout_s"]) == (-1, -1, 60.0)
    assert 0 <= one["age_s"] < 60
    assert one["holds"] == [f"{topic}-0"]
    assert [one for one in listed(witness.bootstrap, "--older-than-s", "3600") if one["name"] == str(name)] == []
    assert not any("theirs" in one["name"] for one in listed(witness.bootstrap))
    shown = CliRunner().invoke(
        app, ["transactions", "list", "--system", "kafka", "--settings", f"bootstrap.servers={witness.bootstrap}"]
    )
    assert str(name) in shown.output
    assert witness.state(ours.handle, theirs.handle) == {"Ongoing"}
    ours.producer.abort_transaction()
    theirs.producer.abort_transaction()


def test_a_cluster_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkonce.sinks.kafka.orphans.ANSWER_WITHIN_S", 1.0)
    found = CliRunner().invoke(
        app, ["transactions", "list", "--system", "kafka", "--settings", "bootstrap.servers=127.0.0.1:1"]
    )
    assert found.exit_code == 2
    assert "127.0.0.1:1" in found.output
