from __future__ import annotations

from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce import Guarantee, KafkaSink
from sparkonce.analysis import servers
from sparkonce.analysis.arguments import kafka_settings, sink_facts
from sparkonce.analysis.facts import KafkaSourceFacts, parse_duration
from sparkonce.analysis.servers import _topics
from sparkonce.errors import ConfigurationError
from sparkonce.sinks.memory.server import MemoryServer
from sparkonce.sinks.memory.sink import MemorySink
from sparkonce.spark.explain.queries import sinks_of_argument


class Writer:
    def __call__(self, rows: Any, batch: int) -> Any:
        return rows


class Process:
    def process(self, row: Any) -> None:
        return


def test_our_sinks():
    no_broker = {"bootstrap.servers": "nowhere:9092"}
    sink = KafkaSink({**no_broker, "transaction.timeout.ms": 60_000}, topic="t")
    (found,) = sink_facts(sink)
    assert (found.format, found.name, found.guarantee, found.kafka) == (
        "sparkonce",
        "KafkaSink t",
        sink.guarantee,
        True,
    )
    assert found.transaction_timeout == timedelta(minutes=1)
    assert kafka_settings(sink) == sink.settings
    weak = KafkaSink(no_broker, name="weak", guarantee=Guarantee.AT_LEAST_ONCE)
    assert kafka_settings(weak) is None
    two = sink_facts([weak, MemorySink(MemoryServer())])
    assert [(each.name, each.kafka) for each in two] == [("KafkaSink weak", True), ("MemorySink memory", False)]

    sinks = {MemorySink(MemoryServer(), name=name): None for name in ("one", "other")}
    facts, ours = sinks_of_argument(sinks)
    assert [each.name for each in facts] == ["MemorySink one", "MemorySink other"]
    assert ours == tuple(sinks)
    with pytest.raises(ConfigurationError, match="is not known"):
        sinks_of_argument({})


def test_formats_and_functions():
    (found,) = sink_facts("Kafka", {"Topic": "t", "kafka.acks": 1})
    assert (found.format, found.name, found.options["kafka.acks"]) == ("kafka", "t", "1")
    assert sink_facts("foreachBatch")[0].format == "foreachbatch"
    (batches,) = sink_facts(Writer())
    assert (batches.format, batches.name) == ("foreachbatch", "Writer")
    (rows,) = sink_facts(Process())
    assert (rows.format, rows.name) == ("foreach", "Process")

    def writes(rows: Any, batch: int) -> None:
        return

    (found,) = sink_facts(partial(writes, 1))
    assert found.name == "writes"


@pytest.mark.parametrize("given", [None, "", 3, [], ["kafka"]])
def test_what_is_no_sink(given):
    with pytest.raises(ConfigurationError, match="sink="):
        sink_facts(given)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90s", timedelta(seconds=90)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("1 day 12 hours", timedelta(hours=36)),
        ("10 minutes", timedelta(minutes=10)),
        ("1 week", timedelta(days=7)),
        ("500ms", timedelta(milliseconds=500)),
        ("1500", timedelta(milliseconds=1500)),
    ],
)
def test_durations(text, duration):
    assert parse_duration(text, "downtime") == duration


@pytest.mark.parametrize("text", ["", "soon", "2 fortnights", "h", "2h later", "-1h"])
def test_what_is_no_duration(text):
    with pytest.raises(ConfigurationError, match="downtime="):
        parse_duration(text, "downtime")


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"kafka.bootstrap.servers": "own:1"}, "own:1"),
        ({}, "given:1"),
        ({"kafka.bootstrap.servers": "own:1", "kafka.security.protocol": "SSL"}, "given:1"),
        ({"kafka.bootstrap.servers": "given:1"}, "given:1"),
    ],
)
def test_which_brokers_are_asked(options, asked, monkeypatch):
    connections: list[str] = []
    monkeypatch.setattr(
        servers, "_describe", lambda connect, *_: connections.append(connect["bootstrap.servers"]) or {}
    )
    servers.ask_about_source(KafkaSourceFacts(options=options), {"bootstrap.servers": "given:1"})
    assert connections == [asked]


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"subscribe": "orders, users,"}, ["orders", "users"]),
        ({"assign": '{"orders": [0, 1], "users": [3]}'}, ["orders", "users"]),
        ({"subscribepattern": "orders.*"}, ["orders", "orders-eu"]),
        ({"subscribepattern": "order"}, []),
        ({}, []),
    ],
)
def test_topics_are_chosen_as_spark_chooses_them(options, chosen):
    assert _topics(options, ["orders", "orders-eu", "users"]) == chosen


@pytest.mark.parametrize(("led_by", "is_transactional"), [((1, 1), False), ((1, -1), None), ((-1, -1), None)])
def test_writers_of_a_partition_without_a_leader_are_unknown(monkeypatch, led_by, is_transactional):
    def partition(number: int, **known: Any) -> SimpleNamespace:
        return SimpleNamespace(partition_index=number, error_code=0, **known)

    def topic(partitions: list[SimpleNamespace]) -> SimpleNamespace:
        return SimpleNamespace(name="orders", error_code=0, partitions=partitions)

    configs = {"retention.ms": "1", "retention.bytes": "-1", "cleanup.policy": "delete"}
    told = [SimpleNamespace(name=name, value=value) for name, value in configs.items()]
    answers = iter(
        [
            SimpleNamespace(topics=[topic([partition(number, leader_id=one) for number, one in enumerate(led_by)])]),
            SimpleNamespace(results=[SimpleNamespace(error_code=0, configs=told)]),
        ]
    )
    led = [partition(number, active_producers=[]) for number, one in enumerate(led_by) if one >= 0]
    client = SimpleNamespace(
        insist=lambda *_, **__: next(answers),
        gather=lambda *_, **__: [SimpleNamespace(topics=[topic(led)])],
        close=lambda: None,
    )
    monkeypatch.setattr(servers, "TransactionClient", lambda *_, **__: client)
    found = servers._describe({"bootstrap.servers": "broker:9092"}, {"subscribe": "orders"}, [])
    assert found["orders"].transactional is is_transactional
