from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from sparkonce.cli.main import app
from sparkonce.decision_log import DecisionLog, Landed
from sparkonce.protocol.codec import encode_record
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim, Commit, Record
from sparkonce.storage.local import LocalFiles

QUERY = "60a1de00-0000-4000-8000-000000000001"


def checkpoint_of(folder: Path, *, decided: int, begun: int, finished: int) -> Path:
    """A checkpoint that was moved here. It has three batches of one run, and those up to `decided` of a third run."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "commits").mkdir()
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    for batch in range(begun + 1):
        (folder / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"orders":{{"0":{batch + 1},"1":{batch + 1}}}}}')
    for batch in range(finished + 1):
        (folder / "commits" / str(batch)).write_text("v1\n{}")
    log = DecisionLog(LocalFiles(folder))
    claim = Claim(nonce="", run="r", query=QUERY, host="driver.example", process=4711, library="0.1.0")
    claim = replace(claim, location="/data/elsewhere/sparkonce", sinks=(("kafka", (("prefix", "shop.eu"),)),))
    told = [replace(claim, nonce="0badcafe"), *(commit(batch, Token(0, "0badcafe")) for batch in range(3))]
    told += [replace(claim, nonce="deadbeef"), replace(claim, nonce="0c5b77b9")]
    told += [commit(batch, Token(5, "0c5b77b9")) for batch in range(3, decided + 1)]
    for position, record in enumerate(told):
        assert isinstance(log.put_bytes(position, encode_record(record, at_ms=1000 + position)), Landed)
    return folder


def commit(batch: int, token: Token) -> Record:
    id_ = f"shop.eu.{QUERY[:8]}0000.{token.position}-{token.nonce}.fcfd8fbf169d"
    handles = [
        Handle(
            sink="kafka",
            slot=slot,
            rows=3,
            opened_ms=900,
            transaction=transaction_fields({"epoch": 0, "producer_id": 11 + slot, "transactional_id": f"{id_}-{slot}"}),
        )
        for slot in (0, 1)
    ]
    handles.append(Handle(sink="kafka.direct", slot=0, rows=4, opened_ms=900))
    offsets = (f'{{"orders":{{"0":{batch + 1},"1":{batch + 1}}}}}',)
    return Commit(token=token, query=QUERY, batch=batch, offsets=offsets, handles=tuple(handles))


@pytest.fixture
def decided(tmp_path) -> Path:
    return checkpoint_of(tmp_path / "checkpoint", decided=3, begun=3, finished=2)


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["checkpoint", *map(str, words)])


def doctor(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, words)])


def told(*words: str | Path) -> Any:
    return json.loads(run(*words, "--format", "json").stdout)


@pytest.mark.parametrize(
    ("batches", "batch", "state", "next_start"),
    [
        ({"decided": 6, "begun": 6, "finished": 6}, 6, "done", "resumes"),
        ({"decided": 2, "begun": 3, "finished": 2}, 3, "planned, and not decided", "writes again"),
        ({"decided": 3, "begun": 3, "finished": 2}, 3, "decided, and may not be finished", "commits"),
    ],
)
def test_the_newest_batch_and_the_next_start_are_shown(tmp_path, batches, batch, state, next_start):
    found = told("show", checkpoint_of(tmp_path / "checkpoint", **batches), "--moved")
    newest = found["newest"]
    assert (found["query"], newest["batch"], newest["state"], found["next_start"]) == (QUERY, batch, state, next_start)
    assert found["sinks"]["kafka"]["prefix"] == "shop.eu"
    if next_start == "commits":
        assert (newest["rows"], newest["transactions"]) == (
            {"kafka": 6, "kafka.direct": 4},
            {"kafka": 2, "kafka.direct": 0},
        )
        assert (newest["offsets"], newest["opened_ms"], newest["decided_ms"]) == (
            ['{"orders":{"0":4,"1":4}}'],
            900,
            1006,
        )


def test_nothing_is_changed_and_nothing_is_made(decided, tmp_path):
    before = sorted((str(path), path.stat().st_mtime_ns) for path in decided.rglob("*"))
    for command in ("show", "history"):
        assert run(command, decided, "--format", "yaml").stdout
    assert sorted((str(path), path.stat().st_mtime_ns) for path in decided.rglob("*")) == before
    (tmp_path / "fresh").mkdir()
    (tmp_path / "fresh" / "metadata").write_text(json.dumps({"id": QUERY}))
    assert told("show", tmp_path / "fresh")["next_start"] == "begins"
    assert [path.name for path in (tmp_path / "fresh").iterdir()] == ["metadata"]


def test_the_history_has_every_record_in_order(decided):
    found = told("history", decided)
    assert [(one["position"], one["kind"], one["batch"]) for one in found] == [
        *((0, "claim", None), (1, "commit", 0), (2, "commit", 1), (3, "commit", 2)),
        *((4, "claim", None), (5, "claim", None), (6, "commit", 3)),
    ]
    assert [one["at_ms"] for one in found] == sorted(one["at_ms"] for one in found)
    assert (found[5]["host"], found[6]["run"], found[6]["rows"]["kafka"]) == ("driver.example", "5-0c5b77b9", 6)
    assert len(told("history", decided, "--last", "2")) == 2
    shown = run("history", decided, "--format", "wide").stdout
    assert "process 4711 on driver.example, sparkonce 0.1.0" in shown
    assert "kafka.direct: 0" in shown

    found = told("batch", decided, "3")
    kafka = [one for one in found if one["sink"] == "kafka"]
    assert [(one["slot"], one["rows"]) for one in kafka] == [(0, 3), (1, 3)]
    assert kafka[0]["transaction"]["producer_id"] == 11
    assert "transactional_id=shop.eu." in run("batch", decided, "3").stdout
    missing = run("batch", decided, "9")
    assert (missing.exit_code, "It has batches 0 to 3." in missing.stderr) == (1, True)


def test_a_copy_is_refused_unless_it_was_moved(decided):
    refused = doctor(decided, "--format", "yaml")
    assert refused.exit_code == 1
    last = yaml.safe_load(refused.stdout)[-1]
    assert (last["name"], last["ok"]) == ("next start", False)
    assert "was last used at /data/elsewhere" in last["says"]
    assert "checkpoint_moved=True" in last["next_step"]
    taken = doctor(decided, "--moved")
    assert (taken.exit_code, "it is committed first" in taken.stdout) == (0, True)


@pytest.mark.parametrize(
    ("broken", "check", "said"),
    [
        ("sparkonce/records/00000000000000000003", "decision log", "cannot be read"),
        ("metadata", "Spark's checkpoint", "does not hold a query's id"),
    ],
)
def test_a_damaged_file_is_found(decided, broken, check, said):
    (decided / broken).write_bytes(b"sparkonce")
    done = doctor(decided, "--moved", "--format", "json")
    last = json.loads(done.stdout)[-1]
    assert (done.exit_code, last["name"], last["ok"]) == (1, check, False)
    assert said in last["says"]
    shown = run("show", decided)
    assert (shown.exit_code, "Next:" in shown.stderr) == (1, True)


@pytest.mark.parametrize("position", [0, 2])
def test_a_record_that_a_copy_lacks_is_named(decided, position):
    """Without this record, the log would seem to end there or to be empty."""
    records = decided / "sparkonce" / "records"
    newest = max(int(path.name) for path in records.iterdir())
    (records / f"{position:020d}").unlink()
    done = doctor(decided, "--moved", "--format", "json")
    last = json.loads(done.stdout)[-1]
    assert (done.exit_code, last["name"], last["ok"]) == (1, "decision log", False)
    assert f"has record {newest}, but not record {position}" in last["says"]
    for command in ("show", "history"):
        assert run(command, decided).exit_code == 1


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (["offsets/3", "commits/2", "offsets/2"], "Batch 2 is asked for, but batch 3 is already decided"),
        (["metadata"], "and the checkpoint to no query: the checkpoint was deleted"),
    ],
)
def test_an_older_spark_part_is_refused_as_the_start_refuses_it(decided, missing, said):
    for name in missing:
        (decided / name).unlink()
    last = json.loads(doctor(decided, "--moved", "--format", "json").stdout)[-1]
    assert (last["ok"], said in last["says"]) == (False, True), last


def test_a_part_of_spark_that_differs_from_the_log_is_refused(decided):
    offsets = decided / "offsets" / "3"
    offsets.write_text(offsets.read_text().replace('"1":4', '"1":5'))
    last = json.loads(doctor(decided, "--moved", "--format", "json").stdout)[-1]
    assert (last["ok"], "was decided with input offsets" in last["says"]) == (False, True), last

    (decided / "offsets" / "3").unlink()
    found = told("show", decided, "--moved")
    assert (found["newest"]["batch"], found["newest"]["state"]) == (
        3,
        "decided, and not in Spark's part of the checkpoint",
    )
    assert (found["next_start"], doctor(decided, "--moved").exit_code) == ("may be refused", 1)


@pytest.mark.parametrize("command", ["show", "history"])
def test_a_folder_that_is_no_checkpoint_is_said_without_a_traceback(command, tmp_path):
    done = run(command, tmp_path)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "is not a checkpoint" in done.stderr
    assert "Traceback" not in done.output
