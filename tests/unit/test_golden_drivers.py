"""Today's driver goes on from what every version has left: the real files, with stand-ins for the servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from golden.job import ON_DISK, SLOTS, Job, numbers
from golden.kept import DECIDED, FINISHED, KILLED, SHORT, UNDECIDED, VERSIONS, copy, state
from sparkonce.errors import CheckpointMismatchError, StaleLogError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.codec import decode_record
from sparkonce.protocol.records import Amend, Claim, Commit
from sparkonce.sinks.files.reading import read_manifests

pytestmark = pytest.mark.parametrize("version", VERSIONS)

AHEAD = "checkpoint/sparkonce-write-ahead"
APPLYING = {"write-ahead": f"{AHEAD}/write-ahead", "orders.eu": f"{AHEAD}/orders%2Eeu"}
HELD = tuple(f"files/{name}/.sparkonce/held" for name in ("plain", "days", "list"))
WAITING = tuple(f"{folder}/{stand}" for folder in APPLYING.values() for stand in ("open", "prepared", "started"))


def added(job: Job, end: int) -> list[object]:
    """The records from a position on."""
    folder = job.checkpoint / "sparkonce" / "records"
    return [decode_record(path.read_bytes()) for path in sorted(folder.iterdir()) if int(path.name) >= end]


def elsewhere(job: Job, guarantee: Guarantee) -> set[str]:
    """The sinks of this guarantee that have a stand-in."""
    return {name for name, sink in job.sinks().items() if sink.guarantee is guarantee} - set(ON_DISK)


def lines(folder: Path, batch: int) -> int:
    """Counts the rows of a batch that are published, with or without folders for partitions."""
    return sum(
        len(path.read_text().splitlines())
        for path in folder.rglob(f"part-*.{batch}.*.json")
        if ".sparkonce" not in path.parts
    )


def test_an_undecided_batch_is_swept_and_written_again(version: str, tmp_path: Path) -> None:
    job = Job(copy(version, UNDECIDED, tmp_path))
    before = job.view()
    held, waiting = job.names(*HELD), job.names(*WAITING)
    assert held
    assert waiting
    done = job.run(KILLED)
    assert (done.recovered, done.healed) == (False, 0)
    claim, commit = added(job, before.end)
    assert isinstance(claim, Claim)
    assert isinstance(commit, Commit)
    assert (commit.batch, commit.token.position, len(commit.handles)) == (KILLED, before.end, 48)
    # What the killed run had left is gone, and what was written instead is there once.
    assert job.names(*HELD) == job.names(*WAITING) == set()
    published = job.names("files/plain", "files/days", "files/list", f"{APPLYING['write-ahead']}/done")
    assert not {name.removesuffix(".held") for name in held} & published
    assert not waiting & published
    assert [lines(job.folder / "files" / name, KILLED) for name in ("plain", "days", "list")] == [3 * SLOTS] * 3
    new = [numbers(KILLED, 0), numbers(KILLED, 1)]
    assert sorted(rows for _, rows in job.asked.applied) == sorted([*new, new[0] + new[1]])
    # Each older run is swept with what it knew of the sink: in that way its names are found.
    for name in elsewhere(job, Guarantee.EXACTLY_ONCE):
        owners = job.asked.swept[name]
        assert [(one.query, one.token, one.facts) for one in owners] == [
            (SHORT, run.token, dict(dict(run.sinks)[name])) for run in before.runs
        ]
    assert not set(job.asked.committed) & {handle for one in before.decisions for handle in one.handles}


def test_a_decided_batch_is_committed_exactly_as_it_was_decided(version: str, tmp_path: Path) -> None:
    job = Job(copy(version, DECIDED, tmp_path))
    before = job.view()
    decided = before.decision(KILLED)
    assert decided is not None
    held, waiting = job.names(*HELD), job.names(*WAITING)
    done = job.run(KILLED)
    assert (done.recovered, done.healed, job.work.into_nothing) == (True, 0, 1)
    (claim,) = added(job, before.end)
    assert isinstance(claim, Claim), "nothing is decided anew"
    assert job.asked.written == []
    there = elsewhere(job, Guarantee.EXACTLY_ONCE)
    assert sorted(job.asked.committed) == [one for one in decided.handles if one.sink in there]
    assert {one.sink for one in job.asked.committed} == there
    # The files that were held back are the ones that are published, and the rows that waited are the ones applied.
    published = job.names("files/plain", "files/days", "files/list")
    assert {name.removesuffix(".held") for name in held} <= published
    assert job.names(*HELD) == job.names(*WAITING) == set()
    assert {token.id for token, _ in job.asked.applied} <= waiting
    as_written = [[300, 301, 302], [310, 311, 312]]
    assert sorted(rows for _, rows in job.asked.applied) == sorted([*as_written, as_written[0] + as_written[1]])
    (whole,) = [token for token, _ in job.asked.applied if token.id.startswith("orders%2Eeu")]
    assert (whole.query, whole.batch, whole.slots, whole.rows) == (SHORT, KILLED, (0, 1), 6)


def test_an_amended_batch_is_committed_as_it_was_amended(version: str, tmp_path: Path) -> None:
    """The log as it was when the amendment was its last record: the floor stands on it."""
    folder = copy(version, FINISHED, tmp_path)
    for path in sorted((folder / "checkpoint" / "sparkonce" / "records").iterdir())[1:]:
        path.unlink()
    job = Job(folder, on_disk=())
    (amended,) = added(job, job.view().floor.position)
    assert isinstance(amended, Amend)
    (healed,) = [one for one in amended.handles if one.key == ("files", 1)]
    assert str(healed["name"]).startswith(f"files.{SHORT}.{amended.token.position}-{amended.token.nonce}.{KILLED}.1.")
    done = job.run(KILLED)
    assert (done.recovered, done.healed) == (True, 0)
    below = {name for name, sink in job.sinks().items() if sink.guarantee is not Guarantee.EXACTLY_ONCE}
    assert sorted(job.asked.committed) == [one for one in amended.handles if one.sink not in below]


def test_a_log_that_is_older_than_the_files_beside_it_is_refused(version: str, tmp_path: Path) -> None:
    """Their manifests, and the notes of what was applied, are read for that."""
    folder = copy(version, DECIDED, tmp_path)
    for path in sorted((folder / "checkpoint" / "sparkonce" / "records").iterdir())[3:]:
        path.unlink()
    for name in ON_DISK:
        with pytest.raises(StaleLogError, match=f"Sink '{name}' remembers more .* no decision in it names"):
            Job(folder, on_disk=[name]).run(2)


def test_what_is_finished_is_not_done_again_and_the_next_batch_follows(version: str, tmp_path: Path) -> None:
    job = Job(copy(version, FINISHED, tmp_path))
    before, last = job.view(), 6
    everything = job.names("files", AHEAD)
    done = job.run(last)
    assert done.recovered
    assert job.names("files", AHEAD) == everything
    assert job.asked.applied == []
    assert job.asked.written == []
    decided = before.decision(last)
    assert decided is not None
    there = elsewhere(job, Guarantee.EXACTLY_ONCE)
    assert sorted(job.asked.committed) == [one for one in decided.handles if one.sink in there]
    following = job.run(last + 1)
    assert (following.recovered, following.healed) == (False, 0)
    assert job.view().decisions[-1].batch == last + 1
    assert [lines(job.folder / "files" / name, last + 1) for name in ("plain", "days", "list")] == [3 * SLOTS] * 3
    assert len(job.asked.applied) == SLOTS + 1
    stand_ins = set().union(*(elsewhere(job, guarantee) for guarantee in Guarantee))
    assert set(job.asked.written) == {(name, last + 1, slot) for name in stand_ins for slot in range(SLOTS)}


def test_facts_go_to_the_preflight_of_each_sink_as_they_were_recorded(version: str, tmp_path: Path) -> None:
    """The sinks on disk hold them against their folders themselves: had they changed, there would be no run."""
    job = Job(copy(version, DECIDED, tmp_path))
    job.run(KILLED)
    expected = json.loads((state(version, DECIDED) / "expected.json").read_text())["newest facts"]
    assert job.asked.recorded == {name: facts for name, facts in expected.items() if name not in ON_DISK}
    (claim,) = added(job, 7)
    assert isinstance(claim, Claim)
    # A newer version may say more of a sink.
    said = {name: dict(facts) for name, facts in claim.sinks}
    assert {name: {fact: said[name][fact] for fact in facts} for name, facts in expected.items()} == expected


def test_manifests_name_each_batch_once(version: str, tmp_path: Path) -> None:
    job = Job(copy(version, FINISHED, tmp_path))
    for name in ("plain", "days", "list"):
        found = read_manifests(job.folder / "files" / name)
        assert [(one.batch, one.token.position) for one in found] == [
            (0, 0),
            (1, 0),
            (2, 0),
            (3, 7 if name == "plain" else 5),
            (4, 7),
            (5, 7),
            (6, 7),
        ]
        assert {one.rows for one in found} == {4, 8}
        assert [len(one.transactions) for one in found] == [0, 0, 2, 2, 2, 2, 2]


def test_another_query_is_refused(version: str, tmp_path: Path) -> None:
    folder = copy(version, DECIDED, tmp_path)
    path = folder / "checkpoint" / "offsets" / str(KILLED)
    path.write_text(path.read_text().replace('{"orders":{"0":4,"1":4}}', '{"orders":{"0":4,"1":5}}'))
    job = Job(folder)
    with pytest.raises(CheckpointMismatchError, match="was decided with input offsets"):
        job.run(KILLED)
    assert job.asked.committed == []
