from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from confluent_kafka import KafkaException
from typer.testing import CliRunner

from integration.kafka_witness import Prepared, Witness, new_name
from sparkonce.cli.main import app
from sparkonce.decision_log import DecisionLog
from sparkonce.driver.start import read_log
from sparkonce.protocol.ownership import Token, TransactionalId, short_query
from sparkonce.protocol.view import Claim, Commit
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.sinks.kafka.transaction_client import TransactionClient
from sparkonce.storage.local import LocalFiles

pytestmark = pytest.mark.kafka

QUERY = "7f6e5d4c-0000-4000-8000-00000000000a"
OLDER, NEWEST = Token(0, "00000001"), Token(1, "00000002")


class Scene:
    def __init__(self, witness: Witness, checkpoint: Path) -> None:
        self.witness, self.checkpoint = witness, checkpoint
        self.topic, self.prefix = witness.create_topic(), new_name("orders")
        checkpoint.mkdir()
        (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
        (checkpoint / "offsets").mkdir()
        (checkpoint / "offsets" / "0").write_text("v1\n{}\n1")
        sink = KafkaSink({"bootstrap.servers": witness.bootstrap}, topic=self.topic, prefix=self.prefix)
        self.sinks = (("kafka", tuple(sorted(sink.preflight(short_query(QUERY), None).items()))),)
        self.log = DecisionLog(LocalFiles(checkpoint))
        for position, token in enumerate((OLDER, NEWEST)):
            location = self.log.location
            claim = Claim(nonce=token.nonce, run="r", query=QUERY, location=location, sinks=self.sinks)
            assert self.log.put(position, claim) is None
        self.config = checkpoint.parent / "systems.yaml"
        self.config.write_text(f"systems:\n  kafka: {{bootstrap.servers: '{witness.bootstrap}'}}\n")
        self._opened: list[Prepared] = []

    def open(self, token: Token, *values: str) -> Prepared:
        lane = len(self._opened)
        name = TransactionalId(prefix=self.prefix, query=short_query(QUERY), token=token, worker="a" * 12, lane=lane)
        self._opened.append(self.witness.prepare(self.topic, *values, transactional_id=str(name)))
        return self._opened[-1]

    def decide(self, prepared: Prepared) -> None:
        record = Commit(token=NEWEST, query=QUERY, batch=0, offsets=("1",), handles=(prepared.handle,))
        assert self.log.put(2, record) is None

    def read(self) -> list[str]:
        return sorted(self.witness.committed(self.topic))

    def close(self) -> None:
        for one in self._opened:
            with suppress(KafkaException):  # the command has ended it
                one.producer.abort_transaction()


@pytest.fixture
def scene(witness, tmp_path) -> Iterator[Scene]:
    with closing(Scene(witness, tmp_path / "checkpoint")) as opened:
        yield opened


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["transactions", *map(str, words)])


def test_a_transaction_is_listed_with_what_it_blocks(scene):
    scene.open(OLDER, "a", "b"), scene.open(NEWEST, "c")
    kafka = ("--system", "kafka", "--settings", f"bootstrap.servers={scene.witness.bootstrap}")
    told = json.loads(run("blocking", "--topic", scene.topic, *kafka, "--format", "json").stdout)
    assert [one["partitions"] for one in told] == [
        [{"topic": scene.topic, "partition": 0, "begins": 0, "readable": 0, "end": 3, "blocks": True}],
        [{"topic": scene.topic, "partition": 0, "begins": 2, "readable": 0, "end": 3, "blocks": False}],
    ]
    assert told[0]["timeout_s"] == 60.0
    assert 0 <= told[0]["age_s"] < 60


@pytest.fixture
def billing(scene) -> Iterator[Prepared]:
    other = scene.witness.prepare(scene.topic, "theirs", transactional_id=new_name("billing"))
    yield other
    other.producer.abort_transaction()


def test_another_applications_transaction_that_blocks_readers_is_named(scene, billing):
    ours, theirs = scene.open(NEWEST, "ours"), dict(billing.handle.transaction)
    of_checkpoint = ("--config", scene.config, "--checkpoint", scene.checkpoint)
    for words in (("--topic", scene.topic, "--config", scene.config), of_checkpoint):
        first, second = json.loads(run("blocking", *words, "--format", "json").stdout)
        assert (first["name"], first["sparkonce"], first["blocks"]) == (theirs["transactional_id"], False, True)
        assert (first["producer_id"], first["epoch"]) == (theirs["producer_id"], theirs["epoch"])
        assert (first["verdict"], first["timeout_s"], first["kind"]) == ("foreign", 60.0, "open")
        assert first["coordinator"] >= 0
        assert 0 < first["since_ms"] / 1000 <= time.time()
        assert first["partitions"] == [
            {"topic": scene.topic, "partition": 0, "begins": 0, "readable": 0, "end": 2, "blocks": True}
        ]
        assert (second["name"], second["sparkonce"]) == (ours.handle["transactional_id"], True)
        assert second["blocks"] is False
    shown = run("blocking", "--topic", scene.topic, "--config", scene.config)
    assert f"Next, {theirs['transactional_id']}: Let its application end it" in shown.stdout
    assert (shown.exit_code, " UTC" in shown.stdout) == (0, True)
    assert theirs["transactional_id"] not in run("list", "--config", scene.config).stdout


def test_a_transaction_whose_marker_is_missing_is_told_from_one_that_is_open(scene, billing, monkeypatch):
    """No test broker loses transactions, so the test makes its coordinator report the transaction as committed."""
    ask = TransactionClient.describe_transactions

    def says(*given: Any, **named: Any) -> list[Any]:
        return [replace(one, state="CompleteCommit") for one in ask(*given, **named)]

    monkeypatch.setattr(TransactionClient, "describe_transactions", says)
    (one,) = json.loads(run("blocking", "--topic", scene.topic, "--config", scene.config, "--format", "json").stdout)
    assert (one["name"], one["kind"]) == (billing.handle["transactional_id"], "marker missing")
    assert "docs/kafka.md#readers" in one["next_step"]


def test_who_blocks_readers_is_not_guessed(scene):
    nobody = run("blocking", "--topic", scene.topic, "--config", scene.config)
    assert f"No transaction is open in {scene.topic}, of any application." in nobody.stdout
    unnamed = run("blocking", "--config", scene.config)
    assert (unnamed.exit_code, "No topic is named" in unnamed.stderr) == (1, True)
    missing = run("blocking", "--topic", "nowhere-at-all", "--config", scene.config)
    assert (missing.exit_code, "There is no topic 'nowhere-at-all'" in missing.stderr) == (1, True)


def test_systems_of_a_file_are_asked_and_those_that_are_silent_named(scene, tmp_path, monkeypatch):
    monkeypatch.setenv("BROKER", scene.witness.bootstrap)
    one = scene.open(OLDER, "a")
    file = tmp_path / "systems.yaml"
    file.write_text(
        "systems:\n  kafka: {bootstrap.servers: '${BROKER}'}\n"
        "  gone: {system: redis, url: 'redis://127.0.0.1:1/0'}\n  empty: {system: files, path: " + str(tmp_path) + "}\n"
    )
    done = run("list", "--config", file, "--format", "json")
    assert one.handle["transactional_id"] in [each["name"] for each in json.loads(done.stdout)]
    assert (done.exit_code, "gone:" in done.stderr, "empty:" in done.stderr) == (2, True, False), done.stderr


def test_a_folder_that_is_not_there_is_not_taken_for_an_empty_one(tmp_path):
    done = run("list", "--system", "files", "--settings", f"path={tmp_path / 'gone'}")
    assert (done.exit_code, "there is no such folder" in done.stderr) == (2, True), done.output


def test_what_is_decided_is_committed_and_the_rest_aborted(scene):
    def listed(scene: Scene, *more: str | Path) -> dict[str, Any]:
        kafka = ("--system", "kafka", "--settings", f"bootstrap.servers={scene.witness.bootstrap}")
        found = json.loads(run("list", *kafka, "--query", QUERY, "--format", "json", *more).stdout)
        return {one["name"]: one for one in found}

    left, decided, undecided = scene.open(OLDER, "left"), scene.open(NEWEST, "decided"), scene.open(NEWEST, "open")
    scene.decide(decided)
    names = [one.handle["transactional_id"] for one in (left, decided, undecided)]
    with_log = listed(scene, "--checkpoint", scene.checkpoint)
    assert [with_log[name]["verdict"] for name in names] == ["abort", "commit", "under way"]
    assert {one["verdict"] for one in listed(scene).values()} == {"not known"}
    assert scene.witness.state(left.handle, decided.handle, undecided.handle) == {"Ongoing"}
    done = run("resolve", scene.checkpoint, "--config", scene.config, "--yes", "--format", "json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["batch"], told["committed"], told["lost"], told["left"]) == (0, 1, 0, [])
    assert (told["swept"], told["open"]) == (["kafka"], [])
    newest = read_log(scene.log).newest_run
    assert told["run"] == f"{newest.token.position}-{newest.token.nonce}"
    assert (newest.token.position, newest.query, newest.sinks) == (3, QUERY, scene.sinks)
    assert scene.read() == ["decided"]
    assert "Ongoing" not in scene.witness.state(left.handle, decided.handle, undecided.handle)
    again = json.loads(run("resolve", scene.checkpoint, "--config", scene.config, "--yes", "--format", "json").stdout)
    assert (again["batch"], again["committed"]) == (0, 1)  # Spark has not recorded it yet
    assert scene.read() == ["decided"]


def test_nothing_is_done_without_a_yes(scene):
    one = scene.open(OLDER, "left")
    asked = CliRunner().invoke(
        app, ["transactions", "resolve", str(scene.checkpoint), "--config", str(scene.config)], input="n\n"
    )
    assert (asked.exit_code, "is superseded and stops" in asked.stderr) == (1, True)
    assert str(one.handle["transactional_id"]) in asked.stderr
    assert read_log(scene.log).end == 2
    assert scene.witness.state(one.handle) == {"Ongoing"}


def test_a_sink_that_is_not_named_stops_it_before_the_claim(scene):
    scene.decide(scene.open(NEWEST, "decided"))
    scene.config.write_text(f"systems:\n  other: {{system: kafka, bootstrap.servers: '{scene.witness.bootstrap}'}}\n")
    done = run("resolve", scene.checkpoint, "--config", scene.config, "--yes")
    assert (done.exit_code, "nothing can be ended" in done.stderr) == (1, True)
    assert read_log(scene.log).end == 3


def test_without_a_checkpoint_a_sweep_needs_a_reason(scene):
    one = scene.open(NEWEST, "decided or not")
    loss = ("--execute", "--yes", "--accept-loss", "why")
    assert "This query has nothing open here." in run("sweep", "--query", QUERY, "--config", scene.config).stdout
    refused = run("sweep", "--query", QUERY, "--config", scene.config, *loss)
    assert (refused.exit_code, "names no sinks" in refused.stderr) == (1, True)
    systems = scene.config.read_text()
    scene.config.write_text(f"{systems}sinks:\n  kafka: {{topic: {scene.topic}, prefix: not-this-one}}\n")
    done = run("sweep", "--query", QUERY, "--config", scene.config, *loss)
    assert (done.exit_code, "Still open:" in done.stdout) == (1, True)
    scene.config.write_text(
        f"systems:\n  kafka: {{bootstrap.servers: '{scene.witness.bootstrap}'}}\n"
        f"sinks:\n  kafka: {{topic: {scene.topic}, prefix: {scene.prefix}}}\n"
    )
    sweep = ("sweep", "--query", QUERY, "--config", scene.config)
    (row,) = [line for line in run(*sweep).stdout.splitlines() if str(one.handle["transactional_id"]) in line]
    assert " abort " in row
    for wrong in (QUERY[:8], f"{QUERY[:-1]}g"):
        assert "is not the id of a query" in run("sweep", "--query", wrong, "--config", scene.config).stderr
    refused = run(*sweep, "--execute", "--yes")
    assert (refused.exit_code, "nobody knows what was decided" in refused.stderr) == (1, True)
    assert scene.witness.state(one.handle) == {"Ongoing"}
    done = run(*sweep, "--execute", "--yes", "--accept-loss", "the disk burnt", "--format", "json")
    found = json.loads(done.stdout)
    assert (found["ended"], found["reason"], found["open"]) == ({"kafka": {"aborted": 1}}, "the disk burnt", [])
    assert scene.witness.state(one.handle) != {"Ongoing"}


def test_a_copy_resolves_nothing_unless_somebody_confirms_that_the_checkpoint_was_moved(scene, tmp_path):
    one = scene.open(NEWEST, "decided")
    scene.decide(one)
    copy = tmp_path / "copy"
    shutil.copytree(scene.checkpoint, copy)
    done = run("resolve", copy, "--config", scene.config, "--yes")
    assert (done.exit_code, "was last used at" in done.stderr) == (1, True)
    words = ["transactions", "resolve", str(copy), "--config", str(scene.config), "--moved", "--yes"]
    asked = CliRunner().invoke(app, words, input="n\n")
    assert (asked.exit_code, str(scene.checkpoint) in asked.stderr) == (1, True)
    assert scene.witness.state(one.handle) == {"Ongoing"}
    assert read_log(DecisionLog(LocalFiles(copy))).end == 3
    assert CliRunner().invoke(app, words, input="y\n").exit_code == 0
    assert scene.read() == ["decided"]


def test_the_doctor_makes_the_checks_of_a_start_and_names_what_to_do(scene):
    def doctor(scene: Scene, *more: str | Path) -> dict[str, Any]:
        words = ["doctor", *map(str, more), "--config", str(scene.config), "--format", "json"]
        return {one["name"]: one for one in json.loads(CliRunner().invoke(app, words).stdout)}

    found = doctor(scene, scene.checkpoint)
    assert all(one["ok"] for one in found.values()), found
    assert {"next start", "system kafka", "sink kafka"} <= found.keys()
    assert f"topic={scene.topic}" in found["sink kafka"]["says"]
    with scene.config.open("a") as file:
        file.write("  cache: {system: redis, url: 'redis://:very-secret@127.0.0.1:1/0'}\n")
        file.write("sinks:\n  kafka: {topic: nowhere-at-all}\n")
    words = ["doctor", str(scene.checkpoint), "--config", str(scene.config)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "very-secret" not in done.output
    found = doctor(scene, scene.checkpoint)
    assert [(name, one["ok"]) for name, one in found.items() if not one["ok"]] == [
        ("system cache", False),
        ("sink kafka", False),
    ]
    assert all(found[name]["next_step"] for name in ("system cache", "sink kafka"))


@pytest.mark.parametrize(
    ("system", "settings", "named"),
    [
        ("kafka", "bootstrap.servers=127.0.0.1:1 sasl.password=s3cr3t", "127.0.0.1:1"),
        ("postgres", "host=127.0.0.1 port=1 dbname=none user=u password=s3cr3t", "dbname=none"),
        ("mysql", "host=127.0.0.1 port=1 user=u password=s3cr3t ssl_disabled=true", "127.0.0.1:1"),
        ("redis", "redis://u:s3cr3t@127.0.0.1:1/0", "127.0.0.1:1"),
    ],
    ids=["kafka", "postgres", "mysql", "redis"],
)
def test_a_server_that_cannot_be_reached_is_named_without_a_secret(monkeypatch, system, settings, named):
    monkeypatch.setattr("sparkonce.sinks.kafka.orphans.ANSWER_WITHIN_S", 1.0)
    found = run("list", "--system", system, "--settings", settings)
    assert (found.exit_code, named in found.output, "s3cr3t" in found.output) == (2, True, False)
