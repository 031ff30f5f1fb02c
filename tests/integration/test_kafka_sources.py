from __future__ import annotations

import json
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
from confluent_kafka import TopicCollection

from eventually import LIMIT_S, eventually
from integration.kafka_witness import new_name
from sparkonce.errors import PreflightError
from sparkonce.source import SourceFacts
from sparkonce.sources import topics as topics_module
from sparkonce.sources.topics import KafkaSource, SourceTopics, ask_sources
from sparkonce_lab.kafka import produce
from sparkonce_lab.rig.kafka import Cluster
from sparkonce_lab.rig.process import free_port

pytestmark = pytest.mark.kafka

ROWS = 10
NOON_MS = 1_769_860_800_000


@pytest.fixture(scope="module")
def numbers(broker, witness) -> str:
    """A topic of two partitions with one row per second from noon on, in alternating partitions."""
    topic = witness.create_topic()
    produce(
        broker.bootstrap,
        topic,
        ({"value": b"x", "partition": each % 2, "timestamp": NOON_MS + 1000 * each} for each in range(ROWS)),
    )
    return topic


def facts(broker: Cluster, **options: str) -> SourceFacts:
    return SourceFacts(format="kafka", options={"kafka.bootstrap.servers": broker.bootstrap, **options})


def ask(broker: Cluster, **options: str) -> KafkaSource:
    (found,) = ask_sources([facts(broker, **options)], is_first=True)
    return found


@pytest.mark.parametrize(
    ("start", "rows"),
    [
        ({"startingoffsets": "earliest"}, 10),
        ({"startingoffsets": "latest"}, 0),
        ({}, 0),
        ({"startingoffsets": {"0": 3, "1": -1}}, 2),
        ({"startingoffsets": {"0": -2}}, 10),
        ({"startingtimestamp": str(NOON_MS + 4000)}, 6),
        ({"startingtimestamp": str(NOON_MS + 60_000)}, 0),
        ({"startingoffsetsbytimestamp": {"0": NOON_MS + 8000}}, 6),
        ({"startingoffsets": "earliest", "maxoffsetspertrigger": "4"}, 4),
    ],
)
def test_rows_of_the_first_batch_are_counted_from_where_spark_starts(broker, numbers, start, rows):
    options = {name: one if isinstance(one, str) else json.dumps({numbers: one}) for name, one in start.items()}
    found = ask(broker, subscribe=f" {numbers}, ", **options)
    assert (found.partitions, found.highest, found.rows) == ({numbers: 2}, 2, rows)


def test_which_partitions_are_read(broker, witness, numbers, caplog):
    other = witness.create_topic(3, name=f"{numbers}.more")
    found = ask(broker, subscribepattern=rf"(\Q{numbers}\E|__.*)", startingoffsets="earliest")
    assert (found.partitions, found.rows) == ({numbers: 2}, ROWS), "Kafka's own topics are not read"
    assert ask(broker, subscribepattern=f"{numbers}.*").partitions == {numbers: 2, other: 3}
    assert ask(broker, subscribepattern="nothing-.*").partitions == {}
    assert "matches pattern='nothing-.*'" in caplog.text
    assert ask(broker, subscribepattern=r"\p{Alpha}+").partitions == {}
    assert "only Java's regular expressions" in caplog.text

    # a broker announces a leader before it has opened its partition
    eventually(lambda: ask(broker, subscribe=other, startingoffsets="earliest").rows == 0, "every leader answers")
    found = ask(broker, assign=json.dumps({numbers: [1], other: [0, 2]}), startingoffsets="earliest")
    assert (found.partitions, found.highest, found.rows) == ({numbers: 1, other: 2}, 3, ROWS // 2)
    with pytest.raises(PreflightError, match="has no partition 5: it has 2"):
        ask(broker, assign=json.dumps({numbers: [0, 5]}))
    with pytest.raises(PreflightError, match="which this query reads, does not exist"):
        ask(broker, subscribe=f"{numbers},{new_name('missing')}")
    with pytest.raises(PreflightError, match="topics='a b' is not a valid topic name"):
        ask(broker, subscribe="a b")


def test_a_topic_has_the_id_that_other_clients_see_until_it_is_made_again(broker, witness, caplog):
    """Ids are in the log, as Java's client writes them."""
    topic = witness.create_topic()
    read = (json.dumps({topic: {"0": 5, "1": 0}}),)

    def known() -> str:
        answer = witness.admin.describe_topics(TopicCollection([topic]))[topic]
        # librdkafka encodes two of base64's characters differently.
        return str(answer.result(LIMIT_S).topic_id).translate(str.maketrans("+/", "-_"))

    with closing(SourceTopics([facts(broker, subscribe=topic)])) as topics:
        assert topics.ids_to_record({}, read) == {topic: known()}
        topics.check_ends({topic: known()}, (), read)
        assert f"Topic '{topic}' partition 0 ends at offset 0, and this query has read it up to 5" in caplog.text
        assert topics.before_decision((), read) == ""
        before = known()
        witness.delete_topic(topic)
        assert topics.before_decision((), read) == "", "Spark itself stops the query for it"
        witness.create_topic(name=topic)
        assert f"it has the id {known()}, and had {before}" in topics.before_decision((), read)


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ("127.0.0.1:{port}", r"did not answer within 1 s: .*127\.0\.0\.1:\d+"),
        ("no.such.host.invalid:9092", r"did not answer within 1 s: .*no\.such\.host\.invalid:9092: DNS"),
        ("no.such.host.invalid", r"are not addresses\. Next: Give host:port"),
    ],
)
def test_brokers_that_are_not_there_are_named(broker, monkeypatch, caplog, servers, words):
    monkeypatch.setattr(topics_module, "LIMIT_S", 1.0)
    servers = servers.format(port=free_port())
    lost = facts(broker, subscribe="t", **{"kafka.bootstrap.servers": servers})
    with pytest.raises(PreflightError, match=rf"(?s)Kafka source's bootstrap.servers='{servers}' {words}"):
        ask_sources([lost], is_first=True)
    assert not caplog.records
    if "not addresses" not in words:
        assert ask_sources([lost], is_first=True, delegated=True)[0].partitions == {}
        assert "cannot be queried" in caplog.text


def test_brokers_that_fall_silent_stop_no_decision(broker, monkeypatch, caplog):
    monkeypatch.setattr(topics_module, "_LIMIT_S", 0.5)
    lost = facts(broker, subscribe="t", **{"kafka.bootstrap.servers": f"127.0.0.1:{free_port()}"})
    with closing(SourceTopics([lost])) as topics:
        for _ in range(2):
            assert topics.before_decision((), ('{"t": {"0": 5}}',)) == ""
    assert len(caplog.records) == 1, caplog.text
    assert "The ids of topics ['t'] cannot be queried, and are not compared" in caplog.text


def test_a_topic_that_is_new_is_waited_for(broker, witness, monkeypatch):
    """A broker may not know it yet."""
    topic, slept = new_name("late"), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        witness.create_topic(name=topic)

    monkeypatch.setattr(topics_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    assert ask(broker, subscribe=topic).partitions == {topic: 2}
    assert slept == [0.2]
