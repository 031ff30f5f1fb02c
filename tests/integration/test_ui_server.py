from __future__ import annotations

import gzip
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from eventually import LIMIT_S, eventually
from page_scene import PageScene, many, now_ms, served
from sparkonce.cli.main import app
from sparkonce.operate.systems import NamedSystem, SystemKind, read_file
from sparkonce.protocol.state import Phase
from sparkonce.ui.server import PageServer
from sparkonce.ui.watcher import without_secrets


@pytest.fixture
def scene(tmp_path) -> PageScene:
    made = PageScene(tmp_path / "totals")
    made.write(many(5, now_ms()))
    return made


@pytest.fixture
def server(scene) -> Iterator[PageServer]:
    with served(scene) as found:
        yield found


def ask(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=LIMIT_S)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def state(server: PageServer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(server, "/api/state")[1])
    return found


def read(server: PageServer) -> dict[str, Any]:
    eventually(lambda: all(one["read_ms"] for one in state(server)["queries"]), "all are read")
    return state(server)


def test_only_its_own_pages_are_served_to_its_own_hosts(server, scene):
    for path in ("/", "/page.js", "/chart.js", "/page.css", "/api/state", "/icon/0.svg", "/nowhere"):
        for host in ("127.0.0.1", "localhost:9000", "[::1]:1", "LOCALHOST", "127.0.0.2"):
            answer, _ = ask(server, path, Host=host)
            assert answer.status == (404 if path == "/nowhere" else 200), (path, host)
        policy = answer.headers["Content-Security-Policy"]
        assert policy.split("; ")[0] == "default-src 'self'"
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Access-Control-Allow-Origin"] is None
        assert "Python" not in str(answer.headers)
        for host in ("evil.example", "localhost.evil.example", "192.0.2.1", "", "["):
            answer, body = ask(server, path, Host=host)
            assert (answer.status, b"totals" in body) == (403, False), (path, host)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
        answer, _ = ask(server, "/api/state", method)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET")
    for path in (
        *("/../server.py", "/static/index.html", "/page.js/..", "/icon/x.svg", "/icon/12.svg", "/index.html"),
        *("/api/timeline?after=x", "/api/timeline?checkpoint=1", "/api/timeline?checkpoint=-1", "//evil.example/"),
        *("/none.js", "/./page.js", "/../static/page.js", "/%70age.js", "//["),
    ):
        assert ask(server, path)[0].status == 404, path
    with served(scene, host="0.0.0.0") as others:  # noqa: S104 - what is tested
        hosts = ("192.0.2.1:80", socket.gethostname(), "localhost", "evil.example")
        assert [others.takes(host) for host in hosts] == [True, True, True, False]
        assert others.url.startswith("http://127.0.0.1:")


def test_the_state_has_what_checkpoint_and_driver_say(server, scene):
    (query,) = read(server)["queries"]
    assert (query["state"], query["run"], query["name"], query["query"]) == ("idle", scene.run, "totals", scene.query)
    assert (query["newest"], query["newest_state"], query["next_start"]) == (2, "done", "resumes")
    scene.change(phase=Phase.WRITING.value, batch=5, since_ms=now_ms())
    (found,) = eventually(
        lambda: [one for one in state(server)["queries"] if one["state"] == "at work"], "the driver is at work"
    )
    assert (found["batch"], found["phase"]) == (5, "preparing every slot")


def test_only_what_is_new_is_fetched(server, scene):
    last = read(server)["queries"][0]["last"]
    found = json.loads(ask(server, "/api/timeline?checkpoint=0&after=0")[1])
    assert ([one[2] for one in found["batches"]], found["last"]) == ([0, 1, 2, 3, 4], last)
    scene.write([*many(5, now_ms()), *many(1, now_ms(), first=5)])
    eventually(lambda: state(server)["queries"][0]["last"] > last, "the sixth batch is read")
    new = json.loads(ask(server, f"/api/timeline?checkpoint=0&after={last}")[1])
    assert 5 in [one[2] for one in new["batches"]]
    assert min(one[0] for one in new["batches"]) > last


def test_many_batches_are_compressed_for_those_who_take_it(scene):
    scene.write(many(1000, now_ms()))
    with served(scene) as server:
        read(server)
        answer, plain = ask(server, "/api/timeline?checkpoint=0&after=0")
        assert (answer.headers["Content-Encoding"], len(json.loads(plain)["batches"])) == (None, 1000)
        answer, packed = ask(server, "/api/timeline?checkpoint=0&after=0", Accept_Encoding="gzip")
        assert (answer.headers["Content-Encoding"], gzip.decompress(packed)) == ("gzip", plain)


def test_a_checkpoint_without_a_timeline_shows_the_log(tmp_path):
    scene = PageScene(tmp_path / "old")
    shutil.rmtree(scene.timeline)
    with served(scene) as server:
        (query,) = read(server)["queries"]
        assert (query["state"], query["has_timeline"], query["newest"]) == ("not known", False, 2)
        found = json.loads(ask(server, "/api/timeline?checkpoint=0&after=0")[1])
        assert [one[2] for one in found["batches"]] == [0, 1, 2]
        assert [one[2] for one in found["events"]] == ["started"]


def test_a_checkpoint_that_breaks_is_an_alarm_and_the_page_goes_on(server, scene):
    read(server)
    newest = max((scene.path / "sparkonce" / "records").iterdir())
    newest.write_bytes(b"not a record")
    (scene.path / "commits" / "3").write_text("v1\n{}")  # change the file names, so that the checkpoint is read again
    keys = eventually(lambda: [one["key"] for one in state(server)["alarms"]], "there is an alarm")
    assert keys == [f"unreadable {scene.path}"]
    assert state(server)["queries"][0]["newest"] == 2


def test_secrets_of_the_file_never_reach_the_page(scene, tmp_path):
    file = tmp_path / "systems.yaml"
    file.write_text(
        "systems:\n"
        "  cache: {system: redis, url: 'redis://operator:very-secret-1@127.0.0.1:1/0'}\n"
        "  shop: {system: postgres, conninfo: 'host=127.0.0.1 port=1 dbname=shop user=etl password=very-secret-2'}\n"
        "  kafka:\n    bootstrap.servers: 127.0.0.1:1\n    security.protocol: SASL_PLAINTEXT\n"
        "    sasl.mechanism: PLAIN\n    sasl.username: operator\n    sasl.password: very-secret-3\n"
        "  lake: {system: files, path: /nowhere/at/all, no_such_option: very-secret-4}\n"
    )
    with served(scene, file=read_file(str(file), {})) as server:
        done = eventually(
            lambda: [one for one in state(server)["systems"] if one["error"] or one["answered_ms"]][2:],
            "three systems have failed",
        )
        assert done
        text = json.dumps(state(server))
        assert "very-secret" not in text
        assert "silent cache" in text
        assert "silent shop" in text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ("redis://u:hunter2@h:1/0", "cannot reach redis://u:hunter2@h:1/0"),
        ("host=h password=hunter2 user=u", "no password hunter2"),
        ("host=h password='hunter2 x'", "no password hunter2 x"),
        ({"sasl.password": "hunter2", "bootstrap.servers": "h:1"}, "h:1 refuses hunter2"),
        ({"sasl.jaas.config": "hunter2"}, "hunter2"),
    ],
)
def test_a_message_that_had_a_secret_would_lose_it(settings, text):
    shown = without_secrets(text, NamedSystem(name="s", kind=SystemKind.KAFKA, settings=settings))
    assert "hunter2" not in shown
    assert ("h:1" in shown) == ("h:1" in text)


@pytest.mark.parametrize(
    ("place", "options", "next_start"), [("elsewhere", [], "is refused"), ("elsewhere", ["--moved"], "resumes")]
)
def test_the_command_serves_until_it_is_interrupted(scene, place, options, next_start):
    path = scene.path.rename(scene.path.with_name(place))
    command = [sys.executable, "-m", "sparkonce", "ui", "--checkpoint", str(path), "--port", "0", *options]
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background has SIGINT ignored
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, heard)
    try:
        said = process.stdout.readline()
        assert said.startswith("The page is at http://127.0.0.1:")
        port = int(said.split(":")[2].split("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        connection.request("GET", "/api/state")
        (query,) = json.loads(connection.getresponse().read())["queries"]
        assert (query["name"], query["next_start"]) == ("totals", next_start)
        connection.close()
        process.send_signal(signal.SIGINT)
        assert (process.communicate(timeout=LIMIT_S)[0], process.returncode) == ("Ended.\n", 0)
    finally:
        process.kill()
        process.communicate()


def test_what_cannot_be_served_is_said_at_once(scene, tmp_path):
    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["ui", *words])
        return done.exit_code, done.stderr

    assert run()[0] == 2
    code, said = run("--checkpoint", str(tmp_path))
    assert (code, "is not a checkpoint" in said) == (1, True)
    code, said = run("--checkpoint", str(scene.path), "--config", str(tmp_path / "none.yaml"))
    assert (code, "cannot be read" in said) == (1, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, said = run("--checkpoint", str(scene.path), "--port", str(taken.getsockname()[1]))
    assert (code, "cannot be used" in said, "--port 0" in said) == (1, True, True)
