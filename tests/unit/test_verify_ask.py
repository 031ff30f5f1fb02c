from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkonce.errors import ConfigurationError
from sparkonce.protocol.state import Phase
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.objects import ObjectFiles
from sparkonce_lab.ask import Asked, options_of
from sparkonce_lab.checkpoint import with_connector
from sparkonce_lab.conduct import RunLimits
from sparkonce_lab.faults import OF_REQUESTS, OF_THE_QUERY, Fault
from sparkonce_lab.history import EventKind, Recorder
from sparkonce_lab.run import Options
from sparkonce_lab.schedule import Step
from sparkonce_lab.strike import check_steps, choices, hindrances, words_of
from sparkonce_lab.systems.files import FilesSystem
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.systems.store import CheckpointStore
from sparkonce_lab.workload import Workload

BOOTSTRAP = "bootstrap.servers"
STEP = Step(number=1, fault=Fault.DRIVER_KILLED, phase=Phase.WRITING.name)


def ask(tmp_path: Path, **more: Any) -> Options:
    return options_of(Asked(**{"folder": tmp_path / "new", "a_seed": 7, **more}))


def refused(tmp_path: Path, **more: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        ask(tmp_path, **more)
    assert error.value.next_step
    return error.value.message


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"bootstrap": "a:1", "systems": ["kafka=b:1"]}, "--bootstrap a:1 and --system kafka b:1"),
        ({"bootstrap": "a:1", "kafka_settings": {BOOTSTRAP: "b:1"}}, "--bootstrap a:1 and --kafka-config b:1"),
        ({"kafka_settings": {"security.protocol": "SSL"}}, "--kafka-config has no bootstrap.servers"),
        ({"refuse_every": 7, "systems": ["files"]}, "--refuse-every 7 is for the system kafka"),
        ({"brokers": 2}, "--brokers 2: there can be 1 or 3"),
        ({"brokers": 3, "bootstrap": "a:1"}, "--brokers 3 is for a Kafka that sparkonce starts, and a:1 is yours"),
        ({"systems": ["files", "files=/data"]}, "--system files is given twice"),
        ({"systems": ["kafka=a:1", "kafka"]}, "--system kafka is given twice"),
        ({"wanted": ["rain"]}, "--fault rain"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(more, named, tmp_path):
    assert named in refused(tmp_path, **more)


KEYS = {"spark.hadoop.fs.s3a.access.key": "AKIA", "spark.hadoop.fs.s3a.secret.key": "hidden"}


def place(tmp_path: Path, **more: Any) -> CheckpointFiles:
    return ask(tmp_path, **more).store.files


def test_a_checkpoint_is_a_new_folder_in_the_users(tmp_path):
    assert ask(tmp_path).store is None
    for given, kind, conf in (
        ("s3a://bucket/a%20b/", ObjectFiles, KEYS),
        ("hdfs://nn:8020/a", HdfsFiles, {}),
        (str(tmp_path), LocalFiles, {}),
    ):
        files = place(tmp_path, checkpoint=given, conf=conf)
        assert isinstance(files, kind)
        assert files.location.startswith(f"{given.rstrip('/')}/sparkonce-verify-")
        assert files.location != place(tmp_path, checkpoint=given, conf=conf).location


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (
            {"conf": {"spark.hadoop.fs.a": "hidden"}},
            "--conf spark.hadoop.fs.a: the checkpoint is on sparkonce's own disk",
        ),
        ({"checkpoint": "s3", "conf": KEYS}, "the checkpoint's store is a server that sparkonce starts"),
        ({"checkpoint": "here"}, "checkpoint='here/sparkonce-verify-"),
        ({"checkpoint": "s3://bucket/a"}, "s3: is not known to be able to put a file only if none"),
        (
            {"checkpoint": "s3a://b/a", "conf": {"spark.hadoop.fs.s3a.aws.credentials.provider": "com.mine.Keys"}},
            "fs.s3a.aws.credentials.provider=com.mine.Keys has no counterpart",
        ),
    ],
)
def test_a_place_for_the_checkpoint_that_cannot_be_used_is_refused(more, named, tmp_path):
    said = refused(tmp_path, **more)
    assert named in said
    assert "hidden" not in said


def test_a_store_needs_its_connector():
    with pytest.raises(ConfigurationError, match="Spark needs the connector of gs:"):
        with_connector("gs://bucket/a", {})
    for named in ({"spark.jars.packages": "a:b:1"}, {"spark.driver.extraClassPath": "/a.jar"}):
        assert with_connector("gs://bucket/a", named) == named
    assert with_connector("hdfs://nn/a", {}) == with_connector("/a", {}) == {}

    kafka = struck(KafkaSystem(), Fault.SERVER_KILLED)
    possible = {(choice.fault, choice.system) for choice in choices([kafka], kafka, disk=False)}
    told = hindrances([kafka], kafka, disk=False)
    of_query = {(fault, "") for fault in OF_THE_QUERY}
    assert of_query - {(Fault.LOG_DISK_FULL, "")} <= possible | told.keys()
    assert not possible & told.keys()


@pytest.fixture
def recorded(tmp_path) -> Path:
    return record(tmp_path / "old")


def record(folder: Path, **more: Any) -> Path:
    recorder = Recorder(folder)
    began = {
        "seed": 5,
        "workload": Workload(seed=5, rows_per_second=77).to_json(),
        "systems": ["kafka", "files"],
        "schedule": [STEP.to_json()],
        "limits": RunLimits(start_s=9.0).to_json(),
        "rows": 123,
        "every_s": 4.0,
        "brokers": 3,
        "places": {},
        "kafka_config": [],
    }
    recorder.note(EventKind.BEGAN, **{**began, **more})
    recorder.close()
    return folder


def test_a_history_is_done_again(recorded, tmp_path):
    options = ask(tmp_path, replay=recorded)
    assert (options.seed, options.rows, options.every_s) == (5, 123, 4.0)
    assert options.workload == Workload(seed=5, rows_per_second=77)
    assert options.schedule == [STEP]
    assert options.limits == RunLimits(start_s=9.0)
    assert [system.name for system in options.systems] == ["kafka", "files"]
    assert options.source.nodes == 3


@pytest.mark.parametrize("name", ["workload", "limits"])
def test_what_another_version_has_recorded_is_refused_by_name(tmp_path, name):
    old = record(tmp_path / "old", **{name: {"unheard_of": 1}})
    said = refused(tmp_path, replay=old)
    assert f"The {name} of the history" in said
    assert "unheard_of" in said


def test_a_checkpoint_is_in_the_same_place_again(tmp_path):
    old = record(tmp_path / "old", checkpoint="s3a://bucket/a", conf=sorted(KEYS))
    assert f"reached s3a://bucket/a with --conf {', '.join(sorted(KEYS))}" in refused(tmp_path, replay=old)
    assert place(tmp_path, replay=old, conf=KEYS).location.startswith("s3a://bucket/a/sparkonce-verify-")
    assert isinstance(place(tmp_path, replay=old, checkpoint=str(tmp_path)), LocalFiles)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--seed", {"seed": 1}),
        ("--rows", {"rows": 123}),
        ("--rate", {"rate": 1}),
        ("--faults", {"faults": 0}),
        ("--fault", {"wanted": ["cut"]}),
        ("--every", {"every_s": 0.0}),
        ("--brokers", {"brokers": 3}),
        ("--system files", {"systems": ["files"]}),
    ],
)
def test_what_would_change_it_is_refused_by_name(option, value, recorded, tmp_path):
    assert option in refused(tmp_path, replay=recorded, **value)


def test_credentials_are_asked_for_again(tmp_path):
    place = "postgres=host=db password=secret"
    first = ask(tmp_path, systems=["kafka", place])
    assert first.addresses == {"postgres": "host=db password=***"}
    old = record(tmp_path / "old", systems=["kafka", "postgres"], places=dict(first.addresses))
    assert "--system postgres=host=db password=***" in refused(tmp_path, replay=old)
    again = ask(tmp_path, replay=old, systems=[place, "kafka"])
    assert again.addresses == first.addresses
    old = record(tmp_path / "older", places={"kafka": "b:1"}, kafka_config=["sasl.password"])
    assert "sasl.password in --kafka-config" in refused(tmp_path, replay=old)
    assert ask(tmp_path, replay=old, kafka_settings={"sasl.password": "secret"}).source.bootstrap == "b:1"


OF_CONNECTIONS = (Fault.CUT, *OF_REQUESTS)


def struck(system: Any, *faults: Fault, requests: tuple[str, ...] = ()) -> Any:
    system.injections = {fault: None for fault in faults if fault not in OF_REQUESTS}
    system.requests = requests
    system.proxy = object() if requests else None
    return system


def test_each_fault_that_cannot_be_injected_has_its_reason(monkeypatch):
    monkeypatch.setattr("sparkonce_lab.strike.cannot_mount", lambda: "no mount program")
    monkeypatch.setattr("sparkonce_lab.strike.find_faketime", lambda: None)
    kafka = struck(KafkaSystem(), Fault.SERVER_KILLED, Fault.SERVER_PAUSED, *OF_CONNECTIONS, requests=("end",))
    files = struck(FilesSystem())
    found = hindrances([kafka, files], kafka, disk=False)
    assert found[Fault.LOG_DISK_FULL, ""] == found[Fault.TARGET_DISK_FULL, "files"] == "no mount program"
    assert found[Fault.CLOCK_JUMPED, ""] == "libfaketime is not installed"
    assert "--brokers 3" in found[Fault.COORDINATOR_MOVED, "kafka"]
    assert not {Fault.EXPIRED, Fault.SERVER_KILLED, *OF_REQUESTS} & {fault for fault, _ in found}
    assert "log-disk-full (no mount program); clock-jumped (libfaketime is not installed)" in words_of(found)
    users = struck(KafkaSystem("b:1"))
    postgres = struck(PostgresSystem("host=db"), Fault.CUT)
    found = hindrances([postgres], users, disk=True)
    assert (Fault.LOG_DISK_FULL, "") not in found
    store = struck(CheckpointStore("hdfs://nn/a", {}))
    found = hindrances([postgres], users, disk=False, store=store)
    assert found[Fault.LOG_DISK_FULL, ""] == "the checkpoint is in a store"
    assert found[Fault.SERVER_PAUSED, "checkpoint"] == "it is your own"
    assert found[Fault.REPLY_LOST, "checkpoint"] == "its connections are encrypted, or not those of S3"
    assert not [one for one in choices([postgres], users, disk=False, store=store) if one.system == "checkpoint"]
    assert "kafka" in found[Fault.EXPIRED, ""]
    assert "advertise" in found[Fault.CUT, "kafka"]
    assert found[Fault.COORDINATOR_MOVED, "kafka"] == found[Fault.SERVER_KILLED, "postgres"] == "it is your own"
    assert found[Fault.REPLY_LOST, "postgres"] == "its connections are encrypted"


def test_a_step_that_cannot_be_injected_is_refused_before_any_is():
    kafka = struck(KafkaSystem(), Fault.SERVER_KILLED, *OF_CONNECTIONS, requests=("end",))
    can, why = choices([kafka], kafka, disk=True), hindrances([kafka], kafka, disk=True)
    lost = replace(STEP, number=2, fault=Fault.REPLY_LOST, system="kafka", request="end")
    check_steps([STEP, lost], can, why)
    moved = replace(STEP, number=3, fault=Fault.COORDINATOR_MOVED, system="kafka")
    other = replace(lost, number=4, request="commit")
    gone = replace(STEP, number=5, fault=Fault.CUT, system="redis")
    with pytest.raises(ConfigurationError, match="3 of 5 steps") as error:
        check_steps([STEP, lost, moved, other, gone], can, why)
    told = error.value.message
    assert "step 3, coordinator-moved of kafka: there is only one broker: --brokers 3" in told
    assert "step 4, reply-lost of kafka: its requests are end, not commit" in told
    assert "step 5, cut of redis: there is nothing to strike" in told
