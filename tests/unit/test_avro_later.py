from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from sparkonce.avro import later
from sparkonce.avro.later import DECODABLE, REASON, SchemaRequest, _Rewriter
from sparkonce.avro.registry import SchemaRegistry
from sparkonce.avro.schemas import wire_header
from sparkonce.errors import ConfigurationError, RegistryError
from sparkonce_lab.registry import RegistryServer
from unit.driver_world import Clock


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


READER = record(x="long")


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as server:
        server.register("orders-value", READER)
        server.set_compatibility("NONE")
        yield server


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(later, "time", clock)
    monkeypatch.setattr(later, "_expiring", {})
    monkeypatch.setattr(later, "_answers", {})
    return clock


@pytest.fixture
def schema_request(server) -> SchemaRequest:
    registry = SchemaRegistry({"url": server.url, "max.retries": 0})
    return SchemaRequest(registry=registry, reader=json.dumps(READER), subjects=("orders-value",))


def answers(schema_request: SchemaRequest, *values: bytes) -> list[bytes]:
    batch = pd.Series(list(values), dtype=object)
    return list(batch.map(_Rewriter(schema_request, batch)))


def reason(answer: bytes) -> str:
    assert answer.startswith(REASON)
    return answer.removeprefix(REASON).decode()


FOREIGN = {
    "another record": {**record(x="long"), "name": "Other"},
    "no field": record(y="long"),
    "a union": record(x=["long", "string"]),
    "no number": record(x="string"),
}


@pytest.mark.parametrize("schema", FOREIGN)
def test_a_record_of_another_subject_that_cannot_be_resolved_is_one_that_cannot_be_decoded(
    server, schema_request, schema
):
    foreign = server.register("others-value", FOREIGN[schema])
    own = server.register("orders-value", record(x="int"))
    bad, good = answers(schema_request, wire_header(foreign) + b"\2\2", wire_header(own) + b"\2")
    assert f"schema id {foreign} belongs to subject others-value, not to orders-value, and Python " in reason(bad)
    assert good == DECODABLE + wire_header(0)[1:] + b"\2"


def test_a_null_that_the_reader_does_not_take_is_one_record_only(server, schema_request):
    header = wire_header(server.register("others-value", record(x=["null", "long"])))
    null, one = answers(schema_request, header + b"\0", header + b"\2\2")
    assert "belongs to subject others-value" in reason(null)
    assert one == wire_header(0) + b"\2"

    several = record(x=["long", "string"])
    schema_id = server.register("others-value", several)
    assert server.register("orders-value", several) == schema_id
    with pytest.raises(ConfigurationError, match=rf"id {schema_id} was registered under .*Start the query again"):
        answers(schema_request, wire_header(schema_id) + b"\0\2")


def test_a_registry_that_does_not_say_whose_an_id_is_makes_no_bad_records(server, schema_request):
    schema_id = server.register("others-value", record(y="long"))
    value = wire_header(schema_id) + b"\2"
    schema_request.registry.find(schema_id)
    with server.failing(503), pytest.raises(RegistryError, match="the subjects of schema id"):
        answers(schema_request, value)
    assert "others-value" in reason(answers(schema_request, value)[0])


def test_ids_that_nobody_knows_are_asked_for_and_waited_for_once_in_a_while(server, schema_request, clock, monkeypatch):
    garbage = [wire_header(number) for number in range(500, 520)]
    for _ in range(3):
        assert "id 500 is not known" in reason(answers(schema_request, *garbage)[0])
    assert (server.count("GET /schemas/ids/5"), len(clock.slept)) == (40, 1)
    clock.pass_by(later.KEEP_S)
    answers(schema_request, garbage[0])
    assert (server.count("GET /schemas/ids/5"), len(clock.slept)) == (42, 2)

    monkeypatch.setattr(later, "MOST_CACHED", 5)
    answers(schema_request, *(wire_header(number) for number in range(500, 520)))
    assert len(later._expiring) <= 5
