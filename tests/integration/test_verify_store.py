"""The checkpoint store of a verified query: the verifier's own S3 with faults, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from s3_bucket import Bucket
from shared_servers import USES_HDFS, hdfs_server, s3_server
from sparkonce.decision_log import record_name
from sparkonce.errors import ConfigurationError
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError, Taken
from sparkonce_lab.checkpoint import checkpoint_away, open_store
from sparkonce_lab.faults import OF_REQUESTS, Fault
from sparkonce_lab.rig.servers.s3 import ACCESS_KEY, SECRET_KEY, find_versitygw
from sparkonce_lab.systems.store import OWN, CheckpointStore
from sparkonce_lab.watch import has_log

RECORD, NEXT = (f"sparkonce/records/{record_name(number)}" for number in range(2))
OF_CONNECTIONS = {Fault.CUT, Fault.SLOWED, Fault.BLACK_HOLE, Fault.REQUESTS_SWALLOWED, Fault.REPLIES_SWALLOWED}


@pytest.fixture
def store(tmp_path) -> Iterator[CheckpointStore]:
    if find_versitygw() is None:
        pytest.skip("no versitygw: go install github.com/versity/versitygw/cmd/versitygw@v1.8.0")
    made = CheckpointStore(OWN, {})
    try:
        made.start(tmp_path / "store")
        yield made
    finally:
        made.stop()


def of_the_query(store: CheckpointStore) -> CheckpointFiles:
    """The checkpoint as the query reaches it: through the faults."""
    return open_store(store.files.location, store.conf)


def test_its_own_server_has_every_fault_of_a_system(store):
    of_a_server = {Fault.SERVER_KILLED, Fault.SERVER_PAUSED}
    assert store.faults().keys() >= OF_CONNECTIONS | of_a_server | OF_REQUESTS
    assert store.faults()[Fault.REPLY_LOST] == ("put",)


def test_a_record_whose_reply_is_lost_meets_its_own_bytes(store):
    query = of_the_query(store)
    assert query.put("offsets/0", b"not a record") == Landed()
    assert store.inject(Fault.REPLY_LOST, request="put")
    assert query.put("offsets/1", b"no record either") == Landed()
    assert not store.sprung()
    assert query.put(RECORD, b"record") == Taken(standing=b"record")
    assert store.sprung()
    store.lift(Fault.REPLY_LOST)
    assert query.put(NEXT, b"next") == Landed()
    assert store.files.read(RECORD) == b"record"


def test_a_record_that_arrives_late_finds_its_place_taken(store):
    query = of_the_query(store)
    assert store.inject(Fault.REQUEST_LATE, request="put")
    assert query.put(RECORD, b"record") == Landed(), "it was sent again, and the first request is still under way"
    assert store.sprung()
    store.lift(Fault.REQUEST_LATE)
    assert store.files.read(RECORD) == b"record"
    assert query.put(RECORD, b"another") == Taken(standing=b"record")


def test_while_nothing_comes_through_the_verifier_reads_on(store):
    query = of_the_query(store)
    assert query.put(RECORD, b"record") == Landed()
    assert store.inject(Fault.BLACK_HOLE)
    found: list[object] = []

    def put() -> None:
        try:
            found.append(query.put(NEXT, b"next"))
        except (OSError, PutUnknownError) as error:
            found.append(error)

    putting = threading.Thread(target=put)
    putting.start()
    try:
        assert has_log(store.files)
        assert store.files.read(RECORD) == b"record"
        assert not found
    finally:
        store.lift(Fault.BLACK_HOLE)
        putting.join(120)
    assert found
    assert query.put("offsets/0", b"it is back") == Landed()


def test_a_server_that_is_killed_comes_back_with_its_records(store):
    query = of_the_query(store)
    assert query.put(RECORD, b"record") == Landed()
    assert store.inject(Fault.SERVER_KILLED)
    store.lift(Fault.SERVER_KILLED)
    assert query.read(RECORD) == b"record"


def test_the_users_store_keeps_the_checkpoint_and_its_logs_are_copied(tmp_path):
    bucket = Bucket(s3_server())
    conf = {
        "spark.hadoop.fs.s3a.endpoint": bucket.server.url,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": ACCESS_KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET_KEY,
    }
    store, said = CheckpointStore(f"s3a://{bucket.name}/a", conf), []
    try:
        store.start(tmp_path / "store")
        assert store.faults().keys() == OF_CONNECTIONS | OF_REQUESTS
        with checkpoint_away(store.files, tmp_path / "kept", said.append) as place:
            for path in ("metadata", "offsets/0", RECORD, "state/0/0/1.delta"):
                assert of_the_query(store).put(path, path.encode()) == Landed()
    finally:
        store.stop()
    kept = {str(path.relative_to(tmp_path / "kept" / "query")) for path in tmp_path.glob("kept/**/*") if path.is_file()}
    assert kept == {"metadata", "offsets/0", RECORD}
    assert place.files.read("state/0/0/1.delta") is not None
    assert said == [f"the checkpoint stays in {place.files.location}; delete it when you no longer need it"]


def test_a_store_that_cannot_be_written_to_is_refused(tmp_path):
    bucket = Bucket(s3_server())
    keys = {"spark.hadoop.fs.s3a.access.key": "nobody", "spark.hadoop.fs.s3a.secret.key": "very-wrong"}
    settings = {"endpoint": bucket.server.url, "endpoint.region": "us-east-1", "path.style.access": "true"}
    conf = keys | {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
    store = CheckpointStore(f"s3a://{bucket.name}/a", conf)
    with pytest.raises(ConfigurationError, match="cannot be written to") as error:
        store.start(tmp_path / "store")
    assert "very-wrong" not in str(error.value)
    store.stop()


@USES_HDFS
def test_a_folder_in_hdfs_has_no_faults_of_connections(tmp_path):
    store = CheckpointStore(f"{hdfs_server().url}/checkpoints", {})
    store.start(tmp_path / "store")
    assert not store.faults()
    assert of_the_query(store).put(RECORD, b"record") == Landed()
    assert has_log(store.files)
    store.stop()
