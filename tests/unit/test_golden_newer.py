"""What a newer version would write is refused, with a sentence, and stays as it is.

A newer log: `test_golden_log.py`; a newer version of what is on servers: `integration/test_newer_formats.py`.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sparkonce.sinks
import sparkonce.spark
from golden.job import Job
from golden.kept import DECIDED, KILLED, copy, state
from golden.kinds import handles
from sparkonce.errors import SparkonceError
from sparkonce.protocol.codec import decode_record, encode_record
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Outcome
from sparkonce.protocol.records import Commit
from sparkonce.sinks._shared.committing import HandleCommitter
from sparkonce.sinks._shared.databases import DatabaseCommitter
from sparkonce.sinks.files.committer import FilesCommitter
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce.sinks.mysql.committer import MySQLCommitter
from sparkonce.sinks.postgres.committer import PostgresCommitter
from sparkonce.sinks.rabbitmq.committer import StreamCommitter
from sparkonce.sinks.redis.committer import RedisCommitter
from sparkonce.sinks.write_ahead.committer import WriteAheadCommitter
from sparkonce.spark.tables.committer import TableCommitter

COMMITTERS: dict[str, type[HandleCommitter[Any]]] = {
    "kafka": KafkaCommitter,
    "files": FilesCommitter,
    "files.list": FilesCommitter,
    "files.s3": FilesCommitter,
    "files.hdfs": FilesCommitter,
    "postgres.two_phase": PostgresCommitter,
    "postgres.staged": PostgresCommitter,
    "mysql.two_phase": MySQLCommitter,
    "mysql.staged": MySQLCommitter,
    "redis": RedisCommitter,
    "redis.cluster": RedisCommitter,
    "write-ahead": WriteAheadCommitter,
    "delta": TableCommitter,
    "iceberg": TableCommitter,
    "pravega": WriteAheadCommitter,
    "queue": WriteAheadCommitter,
    "streams": StreamCommitter,
    "super": StreamCommitter,
}


def golden() -> dict[str, Handle]:
    """One handle of each sink."""
    paths = sorted((state("v1", DECIDED) / "checkpoint" / "sparkonce" / "records").iterdir())
    newest = decode_record(paths[-1].read_bytes())
    assert isinstance(newest, Commit)
    return {one.sink: one for one in (*handles(), *newest.handles) if one.transaction}


@pytest.mark.parametrize("sink", COMMITTERS)
@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_a_handle_with_a_field_of_a_newer_version_is_left_alone(sink: str, ending: str) -> None:
    """The committer has nothing that it could ask: an attempt would fail here."""
    handle = golden()[sink]
    newer = replace(handle, transaction=transaction_fields({**dict(handle.transaction), "lease": 7}))
    committer = COMMITTERS[sink].__new__(COMMITTERS[sink])
    (answer,) = getattr(committer, ending)([newer])
    assert answer.outcome is Outcome.UNKNOWN
    assert answer.reason == (
        "The handle has fields that this version of sparkonce does not know: lease. Run the version that wrote it, "
        "which `sparkonce checkpoint history` names, or a newer one."
    )


def test_a_query_with_such_a_handle_stops_and_commits_nothing_of_that_sink(tmp_path: Path) -> None:
    folder = copy("v1", DECIDED, tmp_path)
    path = max((folder / "checkpoint" / "sparkonce" / "records").iterdir())
    decided = decode_record(path.read_bytes())
    assert isinstance(decided, Commit)
    newer = tuple(
        replace(one, transaction=transaction_fields({**dict(one.transaction), "lease": 7}))
        if one.sink == "files"
        else one
        for one in decided.handles
    )
    path.write_bytes(encode_record(replace(decided, handles=newer), at_ms=0))
    job = Job(folder)
    held = job.names("files/plain/.sparkonce/held")
    with pytest.raises(SparkonceError, match="does not know: lease"):
        job.run(KILLED)
    assert job.names("files/plain/.sparkonce/held") == held != set()


def test_every_committer_knows_the_fields_of_its_handles() -> None:
    for package in (sparkonce.sinks, sparkonce.spark):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith(".committer"):
                importlib.import_module(module.name)
    made = {one for one in subclasses(HandleCommitter) if one.__module__.startswith("sparkonce.")}
    made.discard(DatabaseCommitter)
    assert made >= set(COMMITTERS.values())
    assert {one.__name__ for one in made if not one.handle_fields} == set()


def subclasses(of: type) -> set[type]:
    return {found for one in of.__subclasses__() for found in ({one} | subclasses(one))}


def test_no_golden_handle_has_a_field_that_its_committer_does_not_know() -> None:
    found = golden()
    for sink, committer in COMMITTERS.items():
        assert {name for name, _ in found[sink].transaction} <= committer.handle_fields, sink
