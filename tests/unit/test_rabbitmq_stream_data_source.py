"""Tests of the batches that old and new Spark versions plan for RabbitMQ streams, with a fake server."""

from __future__ import annotations

import pickle
import time
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.errors import OutageError, PreflightError
from sparkonce.needs import WorkerNeeds
from sparkonce.spark.python_worker import needs_of
from sparkonce_rabbitmq.server import RabbitMQ
from sparkonce_rabbitmq.stream import asking, data_source
from sparkonce_rabbitmq.stream.data_source import StreamOptions, StreamReader
from sparkonce_rabbitmq.stream.positions import Positions

SERVER = RabbitMQ(host="rabbit")


@dataclass
class Played:
    """A chunk."""

    chunk_first_offset: int
    num_records: int
    timestamp: int


class Server:
    """A fake server, used instead of real connections. Each chunk of a stream has ten messages.

    Attributes:
        ends: The offset after the last message of each stream.
        is_away: True if the server is down.
    """

    def __init__(self, **ends: int) -> None:
        self.ends, self.is_away = ends, False
        self.stored: dict[tuple[str, str], int] = {}
        self.used_at = float("inf")

    def first_chunk(self, stream: str, kind: Any, offset: int | None = None) -> Played | None:
        if self.is_away:
            raise ConnectionRefusedError("nobody is there")
        if stream not in self.ends:
            raise PreflightError(f"no {stream}")
        end = self.ends[stream]
        at = {"FIRST": 0, "LAST": end - 1, "OFFSET": offset}[kind.name]
        if at is None or not 0 <= at < end:
            return None
        first = at - at % 10
        return Played(first, min(10, end - first), 1000 + first)

    def store_offset(self, stream: str, name: str, offset: int) -> None:
        self.stored[stream, name] = offset

    def close(self) -> None:
        pass


@pytest.fixture
def server(monkeypatch) -> Server:
    played = Server(a=100, b=100)
    monkeypatch.setattr(asking, "connect_to", lambda *_, **__: played)
    monkeypatch.setattr(asking, "AGAIN_S", 0)
    return played


def reader(**more: Any) -> StreamReader:
    given: dict[str, Any] = {
        "server": asdict(SERVER),
        "streams": ("a", "b"),
        "super_stream": False,
        "starting": {},
        "most": 40,
        "amqp": False,
        "offset_name": "",
        "patience_s": 300.0,
        "accept_lost": {},
    }
    options = StreamOptions.parse(StreamOptions(**{**given, **more}).text())
    made = StreamReader(options)
    return pickle.loads(pickle.dumps(made))  # noqa: S301 - as Spark does


def offsets(position: Positions) -> dict[str, int]:
    return {stream: one["offset"] for stream, one in position.items()}


def test_old_spark_gets_one_batch_after_the_other(server):
    plans = reader()
    start = plans.initialOffset()
    assert offsets(start) == {"a": 0, "b": 0}
    first = plans.latestOffset()
    assert offsets(first) == {"a": 20, "b": 20}
    assert first["a"] == {"offset": 20, "chunk": 10, "at": 1010, "first": 0}
    assert [(one.part.start, one.part.end) for one in plans.partitions(start, first)] == [(0, 20), (0, 20)]
    server.ends["a"] = 60
    second = plans.latestOffset()
    assert offsets(second) == {"a": 33, "b": 46}
    plans.partitions(first, second)
    assert plans.latestOffset() != second


def test_old_spark_resumes_at_the_end_that_it_has_stored(server):
    plans = reader()
    stored = plans.latestOffset()
    again = reader()
    assert again.partitions(stored, stored) == []
    assert offsets(again.latestOffset()) == {"a": 40, "b": 40}


def test_new_spark_says_where_a_batch_starts_and_how_much_it_takes(server):
    @dataclass
    class ReadMaxRows:
        max_rows: int

    class ReadAllAvailable:
        pass

    plans = reader()
    start = plans.initialOffset()
    assert offsets(plans.latestOffset(start, ReadMaxRows(10))) == {"a": 5, "b": 5}
    assert offsets(plans.latestOffset(start, ReadMaxRows(10))) == {"a": 5, "b": 5}
    assert offsets(plans.latestOffset(start, ReadAllAvailable())) == {"a": 100, "b": 100}
    plans.prepareForTriggerAvailableNow()
    server.ends["a"] = 200
    assert offsets(plans.latestOffset(start, ReadAllAvailable())) == {"a": 100, "b": 100}
    end = plans.latestOffset(start, ReadAllAvailable())
    assert plans.latestOffset(end, ReadAllAvailable()) == end


def test_nothing_new_is_the_very_same_position(server):
    plans = reader(most=None)
    end = plans.latestOffset()
    assert plans.latestOffset() == end
    server.ends["b"] = 101
    assert plans.latestOffset() == end | {"b": {"offset": 101, "chunk": 100, "at": 1100, "first": 0}}

    with pytest.raises(PreflightError, match="No c"):
        reader(streams=("a", "c")).latestOffset()


def test_a_server_that_is_away_plans_nothing_until_patience_ends(server, monkeypatch):
    now = 1000.0

    def passing() -> float:
        nonlocal now
        now += 0.5
        return now

    for module in (asking, data_source):  # other threads of this process need the real clock
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=passing, sleep=lambda _: None))
    plans = reader(most=None)
    end = plans.latestOffset()
    server.is_away = True
    assert plans.latestOffset() == end
    server.is_away, server.ends["a"] = False, 120
    assert offsets(plans.latestOffset())["a"] == 120
    server.is_away = True
    with pytest.raises(OutageError, match="could not be read"):
        [plans.latestOffset() for _ in range(1000)]


def test_a_server_that_never_answered_is_waited_for(server, monkeypatch):
    tries = iter(range(100))

    def sleep(_: float) -> None:
        server.is_away = next(tries) < 5

    # only in this module, because one of Py4J's threads sleeps as well
    monkeypatch.setattr(asking, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    server.is_away = True
    assert offsets(reader(most=None).latestOffset()) == {"a": 100, "b": 100}


@pytest.mark.parametrize(("starting", "begins"), [({"": "latest"}, 0), ({"": "latest", "b": 7}, 7)])
def test_a_stream_that_is_added_is_read_from_its_beginning_unless_it_is_named(server, starting, begins):
    known = {"a": {"offset": 50, "first": 0}}
    assert offsets(reader(starting={"": "latest"}).initialOffset()) == {"a": 100, "b": 100}
    end = reader(starting=starting, most=2).latestOffset(known)
    assert offsets(end) == {"a": 51, "b": begins + 1}


def test_offsets_are_stored_under_a_name_if_that_is_asked(server):
    plans = reader(most=None)
    plans.commit(plans.latestOffset())
    assert server.stored == {}
    named = reader(most=None, offset_name="job")
    named.commit(named.latestOffset())
    assert server.stored == {("a", "job"): 99, ("b", "job"): 99}
    server.is_away = True
    named.commit(named.latestOffset())


def test_a_place_to_start_travels_as_text():
    starting: dict[str, Any] = {"a": 7, "b": "latest", "": "2026-01-31T12:00:00+00:00"}
    options = reader(starting=starting)._options
    assert [options.begin("a"), options.begin("b")] == [7, "latest"]
    assert options.begin("c").isoformat() == "2026-01-31T12:00:00+00:00"
    assert reader()._options.begin("a") == "earliest"

    needs = {"orders": WorkerNeeds(modules=("rstream",), addresses=(SERVER.stream_address,))}
    far = needs_of([], "spark://master:7077", needs)
    assert "rstream" in far["modules"]
    assert far["addresses"] == [("orders", (("rabbit", 5552),))]
    near = needs_of([], "local[2]", needs)
    assert ("rstream" in near["modules"], near["addresses"]) == (True, [])
