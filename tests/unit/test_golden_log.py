"""Today's code reads what every version has left of a decision log and of Spark's own files, and writes it alike.

What a failure means is said in `golden.kept`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from golden.kept import (
    CHANGED,
    DECIDED,
    FINISHED,
    KILLED,
    NEWEST,
    QUERY,
    STATES,
    UNDECIDED,
    VERSIONS,
    copy_checkpoint,
    plain,
    state,
)
from sparkonce.analysis.checkpoint import checkpoint_facts
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.checkpoint.spark import SparkCheckpoint
from sparkonce.driver.start import recorded_facts
from sparkonce.errors import NewerFormatError
from sparkonce.guarantees import Guarantee
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol import codec
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.records import Amend, Claim, Commit, Record
from sparkonce.protocol.view import LogView
from sparkonce.spark.start.checkpoint import check_query

EACH_VERSION = pytest.mark.parametrize("version", VERSIONS)
EACH_STATE = pytest.mark.parametrize("name", STATES)
LOCATION = "/tmp/sparkonce-golden/checkpoint/sparkonce"  # noqa: S108 - where they were written
FIRST, SECOND, THIRD, FOURTH = (
    Token(0, "d398fdc6"),
    Token(4, "e50e1644"),
    Token(5, "0c5b77b9"),
    Token(7, "1460936b"),
)


def log_of(folder: Path) -> DecisionLog:
    return DecisionLog(LocalLogStore(folder))


def records(version: str, name: str) -> Iterator[tuple[int, bytes]]:
    for path in sorted((state(version, name) / "checkpoint" / "sparkonce" / "records").iterdir()):
        yield int(path.name), path.read_bytes()


def floor(version: str) -> bytes:
    (path,) = (state(version, FINISHED) / "checkpoint" / "sparkonce" / "floors").iterdir()
    return path.read_bytes()


# --- read ------------------------------------------------------------------------------------------------------------


@EACH_VERSION
@EACH_STATE
def test_a_log_says_what_it_said(version: str, name: str, tmp_path: Path) -> None:
    """All of it: `expected.json` was written when the log was."""
    found = plain(log_of(copy_checkpoint(version, name, tmp_path)).read(LogView()))
    assert found == json.loads((state(version, name) / "expected.json").read_text())


def test_what_a_killed_run_has_left_is_a_claim_and_no_decision(tmp_path: Path) -> None:
    view = log_of(copy_checkpoint("v1", UNDECIDED, tmp_path)).read(LogView())
    assert [(run.token, run.query, run.location) for run in view.runs] == [
        (FIRST, QUERY, LOCATION),
        (SECOND, QUERY, LOCATION),
    ]
    assert [(one.position, one.batch, one.token) for one in view.decisions] == [
        (1, 0, FIRST),
        (2, 1, FIRST),
        (3, 2, FIRST),
    ]
    assert (view.end, view.claims_in_a_row, view.decision(KILLED)) == (5, 1, None)
    empty = [handle.key for handle in view.decisions[1].handles if handle.rows == 0]
    assert ("kafka", 1) in empty
    assert {slot for _, slot in empty} == {1}, "batch 1 has no rows in slot 1"


def test_a_decision_is_read_with_its_handles(tmp_path: Path) -> None:
    view = log_of(copy_checkpoint("v1", DECIDED, tmp_path)).read(LogView())
    assert [run.token for run in view.runs] == [FIRST, SECOND, THIRD]
    newest = view.newest_decision
    assert newest is not None
    assert (newest.position, newest.batch, newest.token, newest.query) == (6, KILLED, THIRD, QUERY)
    assert newest.offsets == ('{"orders":{"0":4,"1":4}}',)
    (handle,) = [one for one in newest.handles if one.key == ("kafka", 1)]
    assert handle.transaction == (
        ("epoch", 0),
        ("producer_id", 12),
        ("transactional_id", "shop.eu.60a1de000000.5-0c5b77b9.fcfd8fbf169d-1"),
    )
    assert handle.evidence == (3, 14479540912629219328)


def test_a_floor_an_amendment_that_opens_the_log_and_a_renewed_claim_are_read(tmp_path: Path) -> None:
    view = log_of(copy_checkpoint("v1", FINISHED, tmp_path)).read(LogView())
    assert view.floor.position == 8
    assert [run.token for run in view.floor.runs] == [FIRST, SECOND, THIRD, FOURTH]
    assert [run.location for run in view.floor.runs] == [LOCATION] * 4
    decided = [(one.position, one.batch, one.token) for one in view.decisions]
    assert decided == [(8, 3, FOURTH), (9, 4, FOURTH), (11, 5, FOURTH), (12, 6, FOURTH)]
    found = {position: codec.decode_record(data) for position, data in records("v1", FINISHED)}
    assert [type(record) for record in found.values()] == [Amend, Commit, Claim, Commit, Commit]
    renewed = found[10]
    assert isinstance(renewed, Claim)
    assert (renewed.renews, renewed.host, renewed.process) == (FOURTH, "driver.example", 4711)


@EACH_VERSION
@EACH_STATE
def test_facts_of_each_sink_are_given_to_its_preflight(version: str, name: str, tmp_path: Path) -> None:
    found = recorded_facts(log_of(copy_checkpoint(version, name, tmp_path)).read(LogView()))
    assert found == json.loads((state(version, name) / "expected.json").read_text())["newest facts"]
    if version == "v1":
        assert found["postgres.staged"]["commits"] == "markers"
        assert found["kafka"]["prefix"] == "shop.eu"
        assert found["mysql.direct"] == {}


# --- written alike ---------------------------------------------------------------------------------------------------


@EACH_STATE
def test_a_record_is_written_in_the_same_bytes(name: str) -> None:
    kinds: set[type[Record]] = set()
    for position, data in records(NEWEST, name):
        record = codec.decode_record(data)
        again = codec.encode_record(record, at_ms=codec.decided_at_ms(data))
        assert again == data, f"record {position}: {CHANGED.format(version=NEWEST)}"
        kinds.add(type(record))
    assert Commit in kinds


def test_a_floor_is_written_in_the_same_bytes() -> None:
    data = floor(NEWEST)
    assert codec.encode_floor(codec.decode_floor(data)) == data, CHANGED.format(version=NEWEST)


def test_records_and_floors_are_put_under_the_same_names(tmp_path: Path) -> None:
    """A log that is put anew is the golden one, file for file."""
    golden = state(NEWEST, FINISHED) / "checkpoint" / "sparkonce"
    store = LocalLogStore(tmp_path)
    for position, data in records(NEWEST, FINISHED):
        store.put(position, data)
    store.raise_floor(codec.decode_floor(floor(NEWEST)).position, floor(NEWEST))
    made = tmp_path / "sparkonce"
    found, wanted = (
        {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (made, golden)
    )
    assert found == wanted, CHANGED.format(version=NEWEST)
    assert sorted(path.name for path in made.iterdir()) == ["floors", "records"]


def test_handles_are_sent_from_workers_as_they_are_read(tmp_path: Path) -> None:
    view = log_of(copy_checkpoint(NEWEST, DECIDED, tmp_path)).read(LogView())
    for handle in view.decisions[-1].handles:
        assert codec.decode_handle(codec.encode_handle(handle)) == handle


# --- newer ones ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["record", "floor"])
def test_a_log_of_a_newer_version_is_refused_by_its_number(kind: str, tmp_path: Path) -> None:
    folder = copy_checkpoint(NEWEST, FINISHED, tmp_path)
    path = max((folder / "sparkonce" / f"{kind}s").iterdir())
    ours, newer = f"sparkonce {kind} 1 ", f"sparkonce {kind} {codec.FORMATS[kind] + 1} "
    path.write_bytes(path.read_bytes().replace(ours.encode(), newer.encode(), 1))
    with pytest.raises(NewerFormatError, match=rf"(?i:{kind} .*) has format {codec.FORMATS[kind] + 1}") as told:
        log_of(folder).read(LogView())
    assert "upgrade this one" in told.value.next_step


# --- Spark's own -----------------------------------------------------------------------------------------------------


@EACH_VERSION
@pytest.mark.parametrize(("name", "begun", "finished"), [(UNDECIDED, 3, 2), (DECIDED, 3, 2), (FINISHED, 6, 6)])
def test_sparks_files_say_what_a_query_has_read(
    version: str, name: str, begun: int, finished: int, tmp_path: Path
) -> None:
    checkpoint = copy_checkpoint(version, name, tmp_path)
    check_query(LocalFiles(checkpoint), QUERY)
    spark = SparkCheckpoint(LocalFiles(checkpoint))
    assert spark.query_id() == QUERY
    assert (spark.begun(), spark.finished()) == (begun, finished)
    assert spark.is_unrecorded(KILLED) == (finished < KILLED)
    found = [spark.input_offsets(batch) for batch in range(begun + 2)]
    assert found == [*((f'{{"orders":{{"0":{end},"1":{end}}}}}',) for end in range(1, begun + 2)), None]


@EACH_VERSION
@EACH_STATE
def test_decided_offsets_are_the_ones_in_sparks_files(version: str, name: str, tmp_path: Path) -> None:
    """Compared at each start: another form of the same offsets would be taken for another checkpoint."""
    folder = copy_checkpoint(version, name, tmp_path)
    for decision in log_of(folder).read(LogView()).decisions:
        assert SparkCheckpoint(LocalFiles(folder)).input_offsets(decision.batch) == decision.offsets


@EACH_VERSION
@EACH_STATE
def test_a_checkpoint_is_explained(version: str, name: str, tmp_path: Path) -> None:
    folder = copy_checkpoint(version, name, tmp_path)
    found = checkpoint_facts(LocalFiles(folder))
    assert [(source.format, source.names) for source in found.sources] == [("kafka", ("orders",))]
    sinks = {sink.name: sink for sink in found.sinks}
    assert set(sinks) == set(recorded_facts(log_of(folder).read(LogView())))
    # A run that has decided nothing has left no transactions but Kafka's timeout to know the guarantee by.
    known = {name for name, sink in sinks.items() if sink.guarantee is Guarantee.EXACTLY_ONCE}
    assert "kafka" in known
    assert ("redis" in known) == (name != UNDECIDED)
    assert not known & {one for one in sinks if one.endswith((".direct", ".once"))}
    assert sinks["kafka"].transaction_timeout is not None
    assert sinks["kafka"].transaction_timeout.total_seconds() == 900
