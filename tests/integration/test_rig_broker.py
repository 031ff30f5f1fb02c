import json
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sparkonce.errors import PreflightError
from sparkonce_lab.kafka import (
    create_topic,
    describe_transactions,
    end_offsets,
    list_transactions,
    produce,
    read_committed,
    read_uncommitted,
)
from sparkonce_lab.rig.kafka import Cluster, spark_kafka_jars
from sparkonce_lab.rig.kafka import cluster as cluster_module
from sparkonce_lab.rig.kafka.jars import archive_flags, artifact_name, kafka_archive, spark_jars_folder
from sparkonce_lab.rig.process import is_running

pytestmark = [
    pytest.mark.kafka,
    # kafka-python reads its schemas with a call that newer Python versions deprecate.
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]


def values(records):
    return [record.value for record in records]


@pytest.fixture(scope="module")
def one():
    """A broker that tests may stop and kill, but must leave running."""
    with Cluster(overrides={"transaction.max.timeout.ms": 60_000}) as cluster:
        yield cluster


def test_a_reader_stops_before_an_open_transaction_and_does_not_wait_for_it(one):
    create_topic(one.bootstrap, "open")
    producer = Producer({"bootstrap.servers": one.bootstrap, "transactional.id": "open-id", "log_level": 0})
    producer.init_transactions(30)
    for value, end in ((b"aborted", producer.abort_transaction), (b"kept", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("open", value)
        producer.flush(30)
        end(30)
    producer.begin_transaction()
    producer.produce("open", b"undecided")
    assert producer.flush(30) == 0
    produce(one.bootstrap, "open", [{"value": b"behind it"}])

    assert values(read_committed(one.bootstrap, "open")) == [b"kept"]
    assert values(read_uncommitted(one.bootstrap, "open")) == [b"aborted", b"kept", b"undecided", b"behind it"]
    # Two of the six offsets are the markers that ended the first two transactions.
    assert end_offsets(one.bootstrap, "open") == {0: 4}
    assert end_offsets(one.bootstrap, "open", "READ_UNCOMMITTED") == {0: 6}

    found = list_transactions(one.bootstrap, states=["Ongoing"])["open-id"]
    assert found.state == "Ongoing"
    assert found.partitions == (("open", 0),)
    assert found.start_ms > 0
    assert describe_transactions(one.bootstrap, ["open-id", "nobody's"]) == {"open-id": found}
    producer.abort_transaction(30)
    assert values(read_committed(one.bootstrap, "open")) == [b"kept", b"behind it"]


def test_a_broker_that_cannot_start_shows_its_log_and_leaves_nothing():
    cluster = Cluster(overrides={"authorizer.class.name": "no.such.Authorizer"})
    with pytest.raises(PreflightError, match=r"no\.such\.Authorizer"):
        cluster.start()
    assert cluster.brokers[0].pid is None
    assert not cluster.folder.exists()


def test_spark_is_given_the_connector_and_nothing_that_it_has():
    names = {artifact_name(jar.name) for jar in spark_kafka_jars()}
    assert {"kafka-clients", "commons-pool2"} < names
    assert not names & {artifact_name(jar.name) for jar in spark_jars_folder().glob("*.jar")}


@pytest.mark.slow
def test_a_broker_outlives_its_command_and_is_found_again(tmp_path):
    folder = tmp_path / "broker"

    def broker(*arguments):
        command = [sys.executable, "-m", "sparkonce", "broker", *arguments]
        run = subprocess.run(
            [*command, "--dir", str(folder), "--format=json"], capture_output=True, text=True, timeout=300, check=False
        )
        return run.returncode, json.loads(run.stdout or "null"), run.stderr

    try:
        code, first, _ = broker(
            "up", "--topic", "orders:3", "--set", "transaction.max.timeout.ms=20000", "--heap", "512m"
        )
        assert (code, first["started"], first["state"]) == (0, True, "running")
        produce(first["bootstrap"], "orders", [{"value": b"kept", "partition": 2}])

        code, again, _ = broker("up", "--topic", "more")
        assert (code, again["started"], again["bootstrap"]) == (0, False, first["bootstrap"])
        assert read_committed(first["bootstrap"], "more") == []
        assert broker("status")[:2] == (0, {key: first[key] for key in first if key != "started"})

        pid = first["nodes"][0]["pid"]
        assert broker("down")[1]["ended"] == [pid]
        assert not is_running(pid, str(folder))
        assert broker("status")[0] == 1

        code, second, _ = broker("up", "--heap", "512m")
        assert values(read_committed(second["bootstrap"], "orders")) == [b"kept"]
    finally:
        code, ended, errors = broker("down", "--delete")
    assert (code, len(ended["ended"]), errors) == (0, 1, "")
    assert not folder.exists()


def test_a_version_that_does_not_exist_is_a_message_of_the_command(tmp_path):
    command = [sys.executable, "-m", "sparkonce", "broker", "up"]
    run = subprocess.run(
        [*command, "--dir", str(tmp_path / "broker"), "--version", "4.3.99"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 1
    assert "4.3.99: not found" in run.stderr
    assert "Next: Check the version" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_broker_takes_its_classes_from_an_archive(one):
    kept = kafka_archive(one.version)
    assert str(kept) in Path(f"/proc/{one.brokers[0].pid}/maps").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, b"", b"not an archive"], ids=["none", "could-not-be-made", "does-not-fit"])
def test_a_broker_starts_with_any_archive_of_its_classes_and_makes_one_where_there_is_none(
    content, tmp_path, monkeypatch
):
    kept = tmp_path / "classes" / "kafka.jsa"
    if content is not None:
        kept.parent.mkdir()
        kept.write_bytes(content)
    monkeypatch.setattr(cluster_module, "kafka_archive", lambda _: kept)
    with Cluster() as cluster:
        used = str(kept) in Path(f"/proc/{cluster.brokers[0].pid}/maps").read_text()
    assert used == (content is None)
    assert used or kept.read_bytes() == content


def test_without_an_archive_nothing_stops(tmp_path, caplog):
    kept = tmp_path / "classes" / "kafka.jsa"

    def fail(flag):
        raise PreflightError("No node starts with this flag.", next_step="try none")

    assert archive_flags(kept, fail) == ()
    assert "No node starts with this flag" in caplog.text
    asked = []
    for _ in range(2):  # if the JVM creates no archive, it is not started again
        assert archive_flags(kept, asked.append) == ()
    assert len(asked) == 1
    assert archive_flags(kept / "below-a-file", asked.append) == ()
    assert len(asked) == 1
