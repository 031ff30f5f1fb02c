from pathlib import Path

import pytest

from sparkonce.errors import ConfigurationError
from sparkonce_lab.rig.kafka.broker import render, server_properties

ONE = {1: {"PLAINTEXT": 9092, "CONTROLLER": 9093}}


def settings(node=1, ports=ONE, listeners=None, overrides=None):
    return server_properties(
        node, ports, folder=Path("/data/node"), listeners=listeners or {}, overrides=overrides or {}
    )


def test_one_node_needs_no_other_for_any_topic():
    found = settings()
    assert found["process.roles"] == "broker,controller"
    assert found["listeners"] == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    assert found["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9092"
    assert found["log.dirs"] == "/data/node/data"
    wanted = {name for name in found if name.endswith(("replication.factor", "min.isr", "min.insync.replicas"))}
    assert len(wanted) == 7
    assert {found[name] for name in wanted} == {"1"}


def test_three_nodes_know_each_other_and_survive_the_loss_of_one() -> None:
    three = {node: {"PLAINTEXT": 9090 + node, "CONTROLLER": 9190 + node, "SASL": 9290 + node} for node in (1, 2, 3)}
    found = settings(2, three, {"SASL": "SASL_PLAINTEXT"})
    assert found["node.id"] == "2"
    assert found["controller.quorum.voters"] == "1@127.0.0.1:9191,2@127.0.0.1:9192,3@127.0.0.1:9193"
    assert found["transaction.state.log.replication.factor"] == "3"
    assert found["transaction.state.log.min.isr"] == "2"

    assert found["listeners"] == "PLAINTEXT://127.0.0.1:9092,SASL://127.0.0.1:9292,CONTROLLER://127.0.0.1:9192"
    assert found["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9092,SASL://127.0.0.1:9292"
    assert found["listener.security.protocol.map"] == "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT"

    assert settings(overrides={"node.id": "7", "num.partitions": "3"})["node.id"] == "7"


@pytest.mark.parametrize("name", ["", "two words", "a=b", "line\nbreak"])
def test_a_name_that_no_property_has_is_refused(name):
    with pytest.raises(ConfigurationError, match="not the name of a broker property"):
        settings(overrides={name: "x"})


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ('Module required user_bob="pw";', 'a=Module required user_bob="pw";\n'),
        ("back\\slash", "a=back\\\\slash\n"),
        ("two\nlines\t", "a=two\\nlines\\t\n"),
        (" leading", "a=\\ leading\n"),
        ("é😀", "a=\\u00e9\\ud83d\\ude00\n"),
        ("", "a=\n"),
    ],
)
def test_values_are_written_as_java_reads_them(value, line):
    assert render({"a": value}) == line
