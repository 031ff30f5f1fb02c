from __future__ import annotations

import json
import pickle
import subprocess
import traceback
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import pytest
from pyspark import cloudpickle

from sparkonce.avro.registry import SchemaRegistry
from sparkonce.errors import ConfigurationError, RegistryError
from sparkonce_lab.registry import RegistryServer

SECRET = "p:w%secret"  # noqa: S105
V1 = {"type": "record", "name": "Order", "namespace": "com.example", "fields": [{"name": "id", "type": "int"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
V3_BAD = {**V1, "fields": [{"name": "other", "type": "int"}]}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer(auth=("user", SECRET)) as server:
        yield server


@pytest.fixture
def registry(server) -> SchemaRegistry:
    return SchemaRegistry(settings(server))


def settings(server: RegistryServer, **more: Any) -> dict[str, Any]:
    return {"url": server.url, "basic.auth.user.info": f"user:{SECRET}", "max.retries": 0, **more}


def test_versions_latest_and_ids(server, registry):
    first, second = server.register("orders-value", V1), server.register("orders-value", V2)
    assert [(one.version, one.id, json.loads(one.text)) for one in registry.versions("orders-value")] == [
        (2, second, V2),
        (1, first, V1),
    ]
    assert registry.latest("orders-value").version == 2
    assert json.loads((registry.find(first) or registry.latest("")).text) == V1
    assert registry.find(999) is None

    with pytest.raises(RegistryError, match=r"127\.0\.0\.1.*'no-such-subject'.*40401"):
        registry.versions("no-such-subject")
    server.register("orders-value", V1)
    with pytest.raises(RegistryError, match=r"version 7 of subject 'orders-value'.*40402"):
        registry.version("orders-value", 7)


def test_the_latest_is_the_latest_though_schemas_are_kept(server, registry):
    server.register("orders-value", V1)
    for _ in range(3):
        assert registry.latest("orders-value").version == 1
        registry.find(1)
    # A pickled copy, such as a worker's, uses the same client.
    pickle.loads(pickle.dumps(registry)).find(1)  # noqa: S301
    assert server.count("GET /schemas/ids/1") == 1
    assert server.count("GET /subjects/orders-value/versions/1") == 1
    server.register("orders-value", V2)
    assert registry.latest("orders-value").version == 2


def test_a_version_that_is_deleted_softly_is_still_read(server, registry):
    server.register("orders-value", V1)
    server.register("orders-value", V2)
    server.delete_version("orders-value", 2)
    assert [one.version for one in registry.versions("orders-value")] == [2, 1]
    assert registry.latest("orders-value").version == 1


def test_registering_and_looking_up(server, registry):
    assert registry.register("orders-value", json.dumps(V1)) == registry.register("orders-value", json.dumps(V1)) == 1
    assert registry.lookup("orders-value", json.dumps(V1)) == 1
    with pytest.raises(RegistryError, match=r"subject 'orders-value'.*\(HTTP 409.*compatibility rule"):
        registry.register("orders-value", json.dumps(V3_BAD))
    with pytest.raises(RegistryError, match="auto_register=True"):
        registry.lookup("orders-value", json.dumps(V2))
    server.set_compatibility("NONE", "orders-value")
    assert registry.register("orders-value", json.dumps(V3_BAD)) == 2


def test_references_are_written_out(server, registry):
    server.register("order", V1)
    outer = {"type": "record", "name": "Box", "fields": [{"name": "order", "type": "com.example.Order"}]}
    server.register("box", outer, references=[("com.example.Order", "order", 1)])
    server.register("shelf", {"type": "array", "items": "Box"}, references=[("Box", "box", 1)])
    box = json.loads(registry.latest("shelf").text)["items"]
    assert box["fields"][0]["type"] == V1


@pytest.mark.parametrize("kind", ["JSON", "PROTOBUF"])
def test_other_types_are_refused_by_name(server, registry, kind):
    server.register("orders-value", "{}", kind=kind)
    for ask in (lambda: registry.versions("orders-value"), lambda: registry.find(1)):
        with pytest.raises(ConfigurationError, match=f"of type {kind}: only AVRO"):
            ask()


@pytest.mark.parametrize("status", [404, 429, 500, 503])
def test_a_registry_that_fails_is_no_registry_without_the_schema(server, registry, status):
    with server.failing(status), pytest.raises(RegistryError, match=f"HTTP {status}"):
        registry.find(1)
    assert registry.find(1) is None


def test_a_registry_that_is_away_or_slow_is_an_error_in_time(server, registry):
    with server.down(), pytest.raises(RegistryError, match=r"gave no answer about schema id 1.*Nothing is lost"):
        registry.find(1)
    hasty = SchemaRegistry(settings(server, timeout=0.05))
    with server.slow(1.0), pytest.raises(RegistryError, match="Timeout"):
        hasty.find(1)
    assert registry.find(1) is None


def test_secrets_are_not_told(server):
    wrong = SchemaRegistry(settings(server, **{"basic.auth.user.info": "user:wrong"}))
    with pytest.raises(RegistryError, match=r"basic\.auth\.user\.info") as told:
        wrong.find(1)
    in_url = SchemaRegistry({"url": server.url.replace("//", "//user:hidden@"), "max.retries": 0})
    with pytest.raises(RegistryError) as told_too:
        in_url.find(1)
    with pytest.raises(ConfigurationError) as refused:
        SchemaRegistry(settings(server, **{"no.such.setting": 1}))
    assert "no.such.setting" in str(refused.value)
    for text in (str(told.value), str(told_too.value), repr(in_url), str(refused.value)):
        assert not {"wrong", "hidden", SECRET} & {word for word in ("wrong", "hidden", SECRET) if word in text}

    # The client's own default is no timeout at all.
    assert SchemaRegistry({"url": server.url})._client()._rest_client.timeout == 10

    with pytest.raises(ConfigurationError, match="no url"):
        SchemaRegistry({})


def test_a_server_that_says_the_secret_is_not_repeated(server, registry, monkeypatch):
    echo = (403, {"error_code": 40301, "message": f"user:{SECRET} may not"})
    monkeypatch.setattr(server, "answer", lambda *_: echo)
    with pytest.raises(RegistryError, match=r"\*\*\* may not") as told:
        registry.find(1)
    assert SECRET not in str(told.value)


@pytest.mark.parametrize("password", ["hid@/den", "hid%40%2Fden", "hid/den"])
def test_a_user_in_a_url_is_not_told_however_it_is_written(password):
    two = SchemaRegistry({"url": f"http://user:{password}@one:1,https://user:{password}@two:2/path"})
    assert two.url == "http://one:1,https://two:2/path"
    told = two._without_secrets(f"no route to http://user:{password}@one, {unquote(password)}, {quote(password)}")
    assert told == "no route to http://***@one, ***, ***"


def test_the_cause_and_the_proxy_tell_no_secret(monkeypatch):
    proxy = "http://user:hidden@127.0.0.1:9"
    registry = SchemaRegistry({"url": "http://127.0.0.1:9", "proxy": proxy, "max.retries": 0})

    def fails(_: int) -> None:
        raise OSError(f"cannot reach {proxy}")

    monkeypatch.setattr(registry._client(), "get_schema", fails)
    with pytest.raises(RegistryError, match=r"cannot reach http://\*\*\*@127") as told:
        registry.find(1)
    assert "hidden" not in "".join(traceback.format_exception(told.value))


def test_copies_share_one_client_even_if_a_setting_is_a_function(monkeypatch):
    clients: dict[str, Any] = {}
    monkeypatch.setattr("sparkonce.avro.registry._clients", clients)
    made_of_a_function = {
        "url": "http://127.0.0.1:9",
        "bearer.auth.credentials.source": "CUSTOM",
        "bearer.auth.custom.provider.function": lambda _: {},
        "bearer.auth.custom.provider.config": {},
    }
    registry = SchemaRegistry(made_of_a_function)
    # Pickled in the same way as for a Spark worker, where the function is a new object each time.
    text = cloudpickle.dumps(registry)
    for _ in range(5):
        copy = pickle.loads(text)  # noqa: S301
        copy._client()
        assert copy.key == registry.key
    assert len(clients) == 1
    assert SchemaRegistry(made_of_a_function).key != registry.key


def test_tls(tmp_path):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=registry", "-days", "2",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    with RegistryServer(certificate=(tmp_path / "cert.pem", tmp_path / "key.pem")) as server:
        server.register("orders-value", V1)
        trusting = SchemaRegistry({"url": server.url, "ssl.ca.location": str(tmp_path / "cert.pem")})
        assert trusting.latest("orders-value").id == 1
        with pytest.raises(RegistryError, match=r"CERTIFICATE_VERIFY_FAILED.*ssl\.\*"):
            SchemaRegistry({"url": server.url, "max.retries": 0}).latest("orders-value")
