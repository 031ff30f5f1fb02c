import random
from types import SimpleNamespace

import pyarrow as pa
import pytest

from sparkonce.sinks.kafka import partitioner
from sparkonce.sinks.kafka.partitioner import Partitioner, murmur2

# From Kafka's own UtilsTest (testMurmur2).
KAFKAS = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_hashes_are_kafka_s(kind):
    found = murmur2(pa.array(list(KAFKAS)).cast(kind))
    assert found.tolist() == [number % 2**32 for number in KAFKAS.values()]


def test_keys_of_any_length_in_any_slice_have_the_hash_that_one_alone_has():
    chance = random.Random(1)
    keys = [None if chance.random() < 0.1 else chance.randbytes(chance.randrange(0, 70)) for _ in range(300)]
    column = pa.array(keys, pa.binary())
    together = murmur2(column.slice(11, 200)).tolist()
    alone = [murmur2(pa.array([key or b""], pa.binary())).item() for key in keys[11:211]]
    assert together == alone

    chooser = Partitioner({"partitioner": "murmur2_random"})
    chooser.learn("topic", 7, range(3))
    found = chooser.by_key("topic", pa.array(list(KAFKAS)))
    assert found.tolist() == [(number & 0x7FFFFFFF) % 7 for number in KAFKAS.values()]


@pytest.mark.parametrize("column", [[], [""], [None]], ids=["no rows", "empty", "null"])
def test_a_column_without_a_letter_has_no_memory_to_read(column):
    assert len(murmur2(pa.array(column, pa.string()))) == len(column)


@pytest.mark.parametrize("name", ["consistent_random", "murmur2", "fnv1a_random", ""])
def test_another_partitioner_is_left_to_librdkafka(name):
    chooser = Partitioner({"partitioner": name})
    chooser.learn("topic", 7, range(7))
    assert chooser.by_key("topic", pa.array(["key"])) is None


def test_of_a_topic_that_no_broker_told_of_nothing_is_chosen(monkeypatch):
    chooser = Partitioner({"partitioner": "murmur2_random"})
    assert not chooser.knows("topic")
    chooser.learn_nothing("topic")
    assert chooser.knows("topic")
    assert chooser.by_key("topic", pa.array(["key"])) is None
    assert chooser.without_key("topic", 10) is None
    chooser.forget()
    assert not chooser.knows("topic")

    clock = [1000.0]
    monkeypatch.setattr(partitioner, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    chooser = Partitioner({"partitioner": "murmur2_random"})
    chooser.learn("topic", 2, range(2))
    clock[0] += 299
    assert chooser.knows("topic")
    clock[0] += 2
    assert not chooser.knows("topic")
    chooser.learn_nothing("topic")
    assert chooser.knows("topic")
    assert chooser.by_key("topic", pa.array(["key"])) is not None, "it goes on with what it knew"


@pytest.mark.parametrize(("length", "chooses"), [(1024, True), (1025, False)])
def test_very_long_keys_are_left_to_librdkafka(length, chooses):
    chooser = Partitioner({"partitioner": "murmur2_random"})
    chooser.learn("topic", 2, range(2))
    assert (chooser.by_key("topic", pa.array(["k", "k" * length])) is not None) == chooses
