"""Which source topics count as recreated, and what is known if no broker can be queried."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from sparkonce.errors import PreflightError
from sparkonce.source import SourceFacts
from sparkonce.sources.offsets import Offsets
from sparkonce.sources.topics import KafkaSource, SourceTopics, _Ids, ask_sources, check_names, java_id, java_pattern

OFFSETS = (json.dumps({"a": {"0": 5}, "b": {"0": 7}}),)


class Topics(SourceTopics):
    """Brokers that know these topic ids. Commas separate the ids of different clusters."""

    def __init__(self, **ids: str) -> None:
        super().__init__(())
        self.ids = ids
        self.is_whole = True

    def _ask(self, read: Sequence[str]) -> dict[str, _Ids]:
        assert read == OFFSETS
        return {name: _Ids(frozenset(ids.split(",")), self.is_whole) for name, ids in self.ids.items()}

    def start(self, recorded: Mapping[str, str]) -> Mapping[str, str]:
        return self.ids_to_record(recorded, OFFSETS)


def test_a_topic_that_is_another_one_is_refused():
    topics = Topics(a="1", b="3")
    assert topics.start({"a": "1", "b": "2"}) == {"a": "1", "b": "2"}
    with pytest.raises(PreflightError, match=r"Topic 'b', .* it has the id 3, and had 2"):
        topics.check_same()

    topics = Topics(a="1")
    topics.start({})
    topics.ids = {"a": "1", "b": "2"}  # a new topic that matches a pattern
    assert topics.before_decision((), OFFSETS) == ""
    topics.ids = {"a": "1", "b": "3"}
    assert "Topic 'b'" in topics.before_decision((), OFFSETS)


def test_ids_are_kept_from_the_first_run_on():
    topics = Topics(a="1", b="2")
    assert topics.start({}) == {"a": "1", "b": "2"}
    topics.check_same()
    assert topics.before_decision((), OFFSETS) == ""

    topics = Topics()
    assert topics.start({"a": "1"}) == {"a": "1"}
    topics.check_same()
    assert topics.before_decision((), OFFSETS) == ""

    topics = Topics(a="1")  # the cluster of topic b is silent
    assert topics.start({"a": "1", "b": "2"}) == {"a": "1", "b": "2"}
    topics.ids = {"a": "1", "b": "3"}
    assert "Topic 'b'" in topics.before_decision((), OFFSETS), "the cluster answers, and the topic is another one"

    assert Topics(a="1").start({"a": "1", "gone": "2"}) == {"a": "1"}


def test_a_topic_of_two_clusters_is_the_same_while_one_does_not_answer():
    topics = Topics(a="2,1")
    assert topics.start({}) == {"a": "1,2"}

    topics.ids, topics.is_whole = {"a": "2"}, False
    assert topics.before_decision((), OFFSETS) == ""
    topics.ids = {"a": "3"}
    assert "it has the id 3, and had 1,2" in topics.before_decision((), OFFSETS)

    topics = Topics(a="2")
    topics.is_whole = False
    assert topics.start({}) == {}, "the other cluster has not told its id yet"
    topics.ids, topics.is_whole = {"a": "1,2"}, True
    assert topics.before_decision((), OFFSETS) == ""
    topics.ids = {"a": "1,3"}
    assert "it has the id 1,3, and had 1,2" in topics.before_decision((), OFFSETS)


class Clusters(SourceTopics):
    """Sources on a cluster each, which answer with the ids of the topics that they have, or do not answer."""

    def __init__(self, *sources: Mapping[str, str]) -> None:
        super().__init__([SourceFacts(format="kafka", options=options) for options in sources])
        self.clusters: list[Mapping[str, int] | None] = []

    def _describe(self, number: int, names: Sequence[str], deadline_s: float) -> Any:
        ids = self.clusters[number]
        if not names or ids is None:
            return None
        found = [(name, UUID(int=ids.get(name, 0)), 0 if name in ids else 3) for name in names]
        return SimpleNamespace(topics=[SimpleNamespace(name=n, topic_id=i, error_code=e) for n, i, e in found])

    def ids(self, *clusters: Mapping[str, int] | None) -> dict[str, set[int]]:
        self.clusters = list(clusters)
        assert self.before_decision((), OFFSETS) == ""
        known = {name: ids.split(",") for name, ids in self._known.items()}
        return {name: {self.number(one) for one in ids} for name, ids in known.items()}

    @staticmethod
    def number(topic_id: str) -> int:
        return next(number for number in range(10) if java_id(UUID(int=number)) == topic_id)


@pytest.mark.parametrize("other", [{"subscribepattern": "a.*"}, {"assign": '{"a": [0]}'}, {"subscribe": "a"}])
def test_a_topic_that_a_source_does_not_read_is_not_mistaken_for_another_clusters(other):
    topics = Clusters(other, {"subscribe": "b"})
    assert topics.ids({"a": 1, "b": 2}, {"b": 3}) == {"a": {1}, "b": {3}}
    assert topics.ids({"a": 1, "b": 4}, {"b": 3}) == {"a": {1}, "b": {3}}, "a topic that this query does not read"
    topics.clusters = [{"a": 1, "b": 4}, {"b": 5}]
    assert "Topic 'b'" in topics.before_decision((), OFFSETS)


def test_a_pattern_reads_the_topics_that_its_cluster_has():
    topics = Clusters({"subscribepattern": ".*"}, {"subscribe": "b"})
    assert topics.ids({"a": 1}, None) == {"a": {1}}
    assert topics.ids(None, {"b": 3}) == {"a": {1}}, "the other cluster may have such a topic, too"
    assert topics.ids({"a": 1}, {"b": 3}) == {"a": {1}, "b": {3}}
    assert topics.ids({"a": 1, "b": 2}, {"b": 3}) == {"a": {1}, "b": {2, 3}}, "a new topic that matches"
    assert topics.ids({"a": 1, "b": 2}, None) == {"a": {1}, "b": {2, 3}}
    topics.clusters = [{"a": 1, "b": 2}, {"b": 5}]
    assert "Topic 'b'" in topics.before_decision((), OFFSETS)


class Ends(Topics):
    """Brokers that return the end offset of partition 0 of each topic."""

    def __init__(self, ends: Mapping[str, int], **options: str) -> None:
        super().__init__(**dict.fromkeys(ends, "1"))
        self._sources = [options]
        self._told_ends = {(name, 0): end for name, end in ends.items()}

    def _ends_of(self, number: int, read: Offsets) -> dict[tuple[str, int], int]:
        return {place: end for place, end in self._told_ends.items() if place[0] in read}


FURTHER = (json.dumps({"a": {"0": 9}, "b": {"0": 7}}),)


@pytest.mark.parametrize(
    ("ends", "before", "options", "recorded", "said"),
    [
        ({"a": 5, "b": 70}, (), {}, {}, ""),
        ({"a": 4, "b": 7}, (), {}, {}, "Topic 'a' partition 0 ends at offset 4, and this query has read it up to 5"),
        ({"a": 4, "b": 7}, (), {"failondataloss": "false"}, {}, "reads on from there, as failOnDataLoss=false says"),
        ({"a": 4, "b": 7}, (), {"subscribe": "b, c"}, {}, ""),
        ({"a": 4, "b": 7}, (), {}, {"a": "another"}, ""),
        (
            {"a": 12, "b": 7},
            FURTHER,
            {"failondataloss": "false"},
            {},
            "ends at offset 5, and this query has read it up to 9",
        ),
    ],
)
def test_a_topic_that_ends_before_what_was_read_is_told(caplog, ends, before, options, recorded, said):
    Ends(ends, **options).check_ends(recorded, before, OFFSETS)
    assert said in caplog.text
    assert bool(said) == bool(caplog.records)


@pytest.mark.parametrize("now", [5, 8, 12])
def test_a_batch_that_ends_before_it_begins_stays_refused_whatever_is_written_since(now):
    with pytest.raises(PreflightError, match=r"ended at offset 5 when .* had read it up to 9"):
        Ends({"a": now, "b": 7}).check_ends({}, FURTHER, OFFSETS)


@pytest.mark.parametrize(
    ("sources", "refused"),
    [
        (["a,b"], ""),
        (["a, b, c"], ""),
        (["b"], ""),
        (["mirrored.a,mirrored.b"], "topics 'mirrored.a', 'mirrored.b'"),
        (["a", "mirrored.b"], "topic 'mirrored.b'"),
        (["a,b", "c"], ""),  # for an added source, Spark itself reports it
        (["mirrored.a", ""], ""),  # a pattern, since it may match any topic
        ([], ""),
    ],
)
def test_a_source_of_which_no_topic_was_read_is_refused(sources, refused):
    found = [SourceFacts(format="kafka", options={"subscribe": names} if names else {}) for names in sources]
    check_names(found, (), None)
    if not refused:
        check_names(found, OFFSETS, 3)
        return
    with pytest.raises(PreflightError, match=rf"has read topics? .*; now it should read {refused}, of which") as caught:
        check_names(found, OFFSETS, None)
    assert caught.value.next_step.startswith("Name the topics of before")
    with pytest.raises(PreflightError) as caught:
        check_names(found, OFFSETS, 3)
    assert "since batch 3 may not be committed yet" in caught.value.next_step


def test_brokers_that_only_javas_client_can_ask_are_not_asked_and_the_setting_is_named(caplog):
    options = {
        "subscribe": "a,b",
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": "/etc/trust.jks",
    }
    source = SourceFacts(format="kafka", options=options)
    assert ask_sources([source, source], is_first=True) == [KafkaSource(options=options, partitions={})]
    (asked,) = caplog.records
    assert "bootstrap.servers='broker:9092' is not checked before the start: ssl.truststore.type is JKS" in (
        asked.getMessage()
    )
    assert "Give the authorities' certificates as PEM" in asked.getMessage()

    topics = SourceTopics([source])
    assert topics.ids_to_record({"a": "1"}, OFFSETS) == {"a": "1"}, "what was known is not forgotten"
    topics.check_same()
    assert topics.before_decision((), OFFSETS) == ""
    topics.check_ends({"a": "1"}, OFFSETS, OFFSETS)
    assert len(caplog.records) == 2, "once in a run"
    assert "are not compared: ssl.truststore.type is JKS" in caplog.text
    with pytest.raises(PreflightError, match="ended at offset 5 when the last batch was planned"):
        topics.check_ends({"a": "1"}, FURTHER, OFFSETS)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("orders-.*", "orders-eu", True),
        ("orders", "orders-eu", False),
        (r"\Qa.b\E|c", "a.b", True),
        (r"\Qa.b\E|c", "axb", False),
        (r"\Qa.b", "a.b", True),
        (r"\d+", "\u0664", False),
    ],
)
def test_a_pattern_of_javas_matches_as_there(pattern, name, matches):
    found = java_pattern(pattern)
    assert bool(found.fullmatch(name)) == matches


@pytest.mark.parametrize("pattern", [r"\p{Alpha}+", "[a-z&&[^b]]", "[a[bc]]", "(?<name>a)", r"\h", "("])
def test_a_pattern_that_python_would_read_otherwise_is_not_tried(pattern):
    assert java_pattern(pattern) is None


def test_ids_are_written_as_javas_client_writes_them():
    """Kafka's `Uuid.METADATA_TOPIC_ID`, and an id with all of its special characters."""
    assert java_id(UUID(int=1)) == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert java_id(UUID(int=2**128 - 1)) == "_____________________w"
