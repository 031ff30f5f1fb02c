"""What earlier versions recorded of each system is held against the system by today's preflight, fact by fact.

A fact that today's code did not look at any more would let a query go on elsewhere; one that it knew under another name
would be taken for a first start.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from golden.job import Job
from golden.kept import DECIDED, SHORT, VERSIONS, copy, state
from golden.stand_ins import Postgres
from sparkonce import Guarantee, PostgresSink, WriteAheadSink
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.sink import Facts, Owner, claimed_by
from sparkonce.sinks.files import sink as files_sink
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.kafka import preflight as kafka
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.sinks.kafka.topic import warn_if_made_again, why_not_decide
from sparkonce.sinks.mysql import markers
from sparkonce.sinks.mysql import preflight as mysql
from sparkonce.sinks.mysql.flavours import MARIADB
from sparkonce.sinks.postgres import preflight as postgres
from sparkonce.sinks.redis.names import IDENTITY
from sparkonce.sinks.redis.preflight import Preflight
from sparkonce.sources.group_offsets import GroupOffsets, GroupReporter
from sparkonce.spark.tables.delta import DeltaSink
from sparkonce.spark.tables.iceberg import IcebergSink
from sparkonce.spark.tables.sink import TableSink
from sparkonce.write_ahead import Applies

pytestmark = pytest.mark.parametrize("version", VERSIONS)

Check = Callable[[Facts, Facts], Facts]
"""Today's preflight of a sink, on a system that is as the first facts say, with the second ones recorded."""

OTHER = "0" * 16


def recorded(version: str) -> dict[str, Facts]:
    expected: dict[str, Facts] = json.loads((state(version, DECIDED) / "expected.json").read_text())["newest facts"]
    return expected


# --- each system -----------------------------------------------------------------------------------------------------


def on_kafka(there: Facts, known: Facts) -> Facts:
    look: Any = SimpleNamespace(servers="broker:9092")
    kafka._check_cluster(there["cluster_id"], look, known, None)
    return there


def on_postgres(there: Facts, known: Facts) -> Facts:
    commits = there.get("commits", "public")
    sink = PostgresSink("host=h dbname=d", table="numbers", commits_schema=commits)
    connection: Any = Postgres(
        {
            "server_version_num": [(150_000, False, there["database"], 1)],
            "has_function_privilege": [(True,)],
            "obj_description": [(there["system"], None)],
        }
    )
    request = sink._request()
    postgres._check_same_schema(request, known)
    found = postgres._check_server(connection, request, known)
    return {**there, **found}


def on_mysql(there: Facts, known: Facts) -> Facts:
    answers = {"DATABASE()": (there["database"],), markers.SERVERS: (there["server"].encode(),), "CONCAT": ("h:1",)}
    link: Any = SimpleNamespace(
        row=lambda text, *_: next((row for start, row in answers.items() if start in text), None)
    )
    database = mysql._check_database(link, known)
    return {**there, "database": database, "server": mysql._check_identity(link, MARIADB, known)}


class Redis(Preflight):
    """Leaves of a preflight only what it holds against the recorded facts."""

    def _infos(self) -> dict[str, Mapping[str, str]]:
        return {}

    def _check_commands(self) -> None:
        """It has them."""


def on_redis(there: Facts, known: Facts) -> Facts:
    place = SimpleNamespace(cluster=there["mode"] == "cluster", url="redis://h")
    kept = {IDENTITY: there["server"].encode()}
    nodes: Any = SimpleNamespace(endpoint=place, ask=lambda request: kept.get(request.args[1]))
    return Redis(nodes, Guarantee.EXACTLY_ONCE, there["prefix"], 0).facts(known)


def on_files(there: Facts, known: Facts) -> Facts:
    place = {name: value for name, value in there.items() if name not in ("prefix", "timeout_s")}
    store = SimpleNamespace(
        check=lambda: place, conditions=tuple, timeout_s=lambda: None, close=lambda: None, folds_names=lambda: False
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_sink, "open_store", lambda *_: store)
        return FilesSink("hdfs://h:1/out", name=there["prefix"]).preflight(SHORT, known)


CHECKS: Mapping[str, Check] = {
    **dict.fromkeys(("kafka", "kafka.direct", "kafka.once"), on_kafka),
    **dict.fromkeys(
        ("postgres.two_phase", "postgres.staged", "postgres.upsert", "postgres.direct"),
        on_postgres,
    ),
    **dict.fromkeys(("mysql.two_phase", "mysql.staged", "mysql.upsert"), on_mysql),
    **dict.fromkeys(("redis", "redis.cluster", "redis.direct"), on_redis),
    **dict.fromkeys(("files", "files.days", "files.direct", "files.hdfs", "files.list"), on_files),
    **dict.fromkeys(("files.once", "files.s3"), on_files),
}
ON_DISK = ("write-ahead", "orders.eu", "write-ahead.direct", "delta", "iceberg")
MAY_CHANGE = {"prefix", "topic", "topic_id", "transaction_timeout_ms"}
"""What a run may have otherwise than the one before: its own names are what the log says, and not these."""


def test_every_sink_is_here(version: str) -> None:
    assert {*CHECKS, *ON_DISK, "mysql.direct"} == set(recorded(version))


@pytest.mark.parametrize("sink", CHECKS)
def test_a_system_that_is_still_the_same_is_taken(version: str, sink: str) -> None:
    known = recorded(version)[sink]
    # A newer version may say more.
    assert known.items() <= CHECKS[sink](known, known).items()


@pytest.mark.parametrize("sink", CHECKS)
def test_a_system_that_differs_in_a_recorded_fact_is_refused(version: str, sink: str) -> None:
    known = recorded(version)[sink]
    told = [name for name in known if name not in MAY_CHANGE]
    assert told
    for name in told:
        other = {"cluster": "single", "single": "cluster"}.get(known[name], OTHER)
        with pytest.raises(PreflightError) as refused:
            CHECKS[sink]({**known, name: other}, known)
        assert known[name] in f"{refused.value} {refused.value.next_step}", name


# --- folders ---------------------------------------------------------------------------------------------------------


def waiting(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, table: str) -> WriteAheadSink:
    monkeypatch.setattr(TableSink, "_ask", lambda *_: table)
    monkeypatch.setattr(
        "sparkonce.spark.tables.iceberg.driver_session", lambda _: SimpleNamespace(conf={}), raising=True
    )
    per = "batch" if name == "orders.eu" else "slot"
    sink: WriteAheadSink
    match name:
        case "delta":
            sink = DeltaSink("nowhere")
        case "iceberg":
            sink = IcebergSink("nowhere")
        case _:
            sink = WriteAheadSink(print, applies=Applies.NEITHER, name=name, per=per)  # type: ignore[arg-type]
    sink.use_checkpoint(LocalFiles(folder / "checkpoint"))
    return sink


@pytest.mark.parametrize("name", ON_DISK)
def test_a_folder_in_which_rows_wait_is_held_against_its_facts(
    version: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = recorded(version)[name]
    folder = copy(version, DECIDED, tmp_path)
    assert waiting(name, folder, monkeypatch, known.get("table", "")).preflight(SHORT, known) == known
    for fact in known:
        other = {**known, fact: OTHER}
        with pytest.raises(PreflightError, match=f"(?s){OTHER}"):
            waiting(name, folder, monkeypatch, known.get("table", "")).preflight(SHORT, other)


# --- what else asks for them -----------------------------------------------------------------------------------------


def test_prefixes_say_whose_transactions_are_swept(version: str, tmp_path: Path) -> None:
    run = Job(copy(version, DECIDED, tmp_path)).view().runs[-1]
    for name, facts in run.sinks:
        known = dict(facts)
        owner = Owner(query=SHORT, token=run.token, facts=known)
        claimed = claimed_by([owner])
        assert claimed == ({(known["prefix"], SHORT): frozenset({run.token})} if "prefix" in known else {}), name


def test_kafkas_facts_give_its_timeout_and_its_topic(version: str, caplog: pytest.LogCaptureFixture) -> None:
    known = recorded(version)["kafka"]
    sink = KafkaSink({"bootstrap.servers": "broker:9092"}, topic="totals")
    assert sink.transaction_timeout_s(known) == 900.0
    warn_if_made_again(known, known)
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        warn_if_made_again({**known, "topic_id": OTHER}, known)
    assert known["topic_id"] in caplog.text
    other = SimpleNamespace(error_code=0, name="totals", topic_id=SimpleNamespace(int=1))
    metadata = SimpleNamespace(topics=[other])
    assert known["topic_id"] in why_not_decide(known, metadata)


def test_a_group_is_held_against_the_cluster_of_the_sink(version: str) -> None:
    settings = {"bootstrap.servers": "broker:9092"}
    reporter = GroupReporter(GroupOffsets("g", settings, in_transaction_of="kafka"))
    known = recorded(version)
    reporter._opened = SimpleNamespace(cluster_id=lambda **_: known["kafka"]["cluster_id"])  # type: ignore[assignment]
    reporter.check(known)
    reporter._opened = SimpleNamespace(cluster_id=lambda **_: OTHER)  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match=known["kafka"]["cluster_id"]):
        reporter.check(known)
