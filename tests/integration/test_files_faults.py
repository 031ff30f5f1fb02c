from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from integration.files_scene import QUERY, Life
from small_job import SmallJob
from sparkonce.errors import CorruptRecordError, PreflightError, PrepareError, UnknownOutcomeError
from sparkonce.files import read_manifests
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import Phase
from sparkonce.sinks.files import committer as committer_module
from sparkonce.sinks.files import local, manifests
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.files.store import ChecksumStream, read_handle
from sparkonce.storage import local as local_files

ONE, TWO = pa.table({"x": [1, 2]}), pa.table({"x": [3, 4]})
PARTS = pa.table({"x": [1, 2, 3], "p": ["a", "b", "c"]})


class KilledError(BaseException):
    """The code under test must not catch it, just as nothing survives SIGKILL."""


def killed(*_: object, **__: object) -> None:
    raise KilledError


def published(root: Path) -> list[Path]:
    return sorted(root.rglob("*.parquet"))


def rows(root: Path) -> list[int]:
    return sorted(one for path in published(root) for one in pq.ParquetFile(path).read().column("x").to_pylist())


def held(root: Path) -> list[Path]:
    return sorted((root / ".sparkonce" / "held").iterdir())


def held_names(handle: Handle) -> list[str]:
    return [str(one["held"]) for one in read_handle(handle).files or ()]


def final(root: Path, handle: Handle, number: int = 0) -> Path:
    files = read_handle(handle).files
    return root / str(files[number]["path"])


@pytest.mark.parametrize("partition_by", [(), ("p",)])
@pytest.mark.parametrize(
    ("owner", "call", "published"),
    [(os, "link", False), (local, "sync_folder", True), (Path, "unlink", True)],
    ids=["before the link", "after the link", "after the fsync"],
)
def test_killed_while_publishing(tmp_path, monkeypatch, owner, call, published, partition_by):
    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by=partition_by))
    handle = life.prepare(PARTS)
    with monkeypatch.context() as patch:
        patch.setattr(owner, call, killed)
        with pytest.raises(KilledError):
            life.commit(handle)
    assert held(root), "the held name is removed last"
    assert rows(root) == ([1, 2, 3] if published else [])
    for expected in ({Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}, {Outcome.ALREADY_COMMITTED}):
        (answer,) = FilesSink(root, partition_by=partition_by).committer().commit([handle])
        assert answer.outcome in expected
        assert rows(root) == [1, 2, 3]
        assert held(root) == []


def test_killed_while_discarding(tmp_path, monkeypatch):
    life = Life(FilesSink(tmp_path / "out"))
    handles = life.prepare(ONE), life.prepare(ONE, slot=1)
    for handle in handles:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", killed)
            with pytest.raises(KilledError):
                life.committer.abort([handle])
    assert life.commit(handles[0]) == [Outcome.LOST], "it can no longer be published"
    (lingering,) = life.committer.list_lingering([life.owner])
    assert lingering.slot == 1, "nothing is left of the file that was reported lost"
    assert [one.outcome for one in life.committer.abort([lingering])] == [Outcome.ABORTED]
    assert held(tmp_path / "out") == []


def test_what_a_reader_takes_away_after_the_batch_is_whole_is_not_lost(tmp_path):
    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by="p"))
    handles = life.run_batch(PARTS, PARTS)
    final(root, handles[0]).unlink()
    assert life.commit(*handles) == [Outcome.ALREADY_COMMITTED] * 2
    alone = life.prepare(PARTS, batch=1)
    assert life.commit(alone) == [Outcome.COMMITTED]
    for number in range(3):
        final(root, alone, number).unlink()
    assert life.commit(alone) == [Outcome.LOST], "no manifest says that it was whole"


def test_what_is_durable_when(tmp_path, monkeypatch):
    """Checks the order in which things become durable.

    First the file under its first name, and then the handle. The second name follows before the first one is removed,
    and the removal before the end of the batch. From then on, readers may delete the second name, and it must not be
    created again.
    """
    life = Life(FilesSink(tmp_path / "out", partition_by="p"))
    done: list[str] = []

    def noting(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any, **named: Any) -> Any:
            where = Path(f"/proc/self/fd/{given[0]}").readlink() if what == "fsync" else Path(given[0])
            done.append(f"{what} {where.name if where.is_dir() else 'file'}")
            return call(*given, **named)

        return noted

    monkeypatch.setattr(os, "fsync", noting("fsync", os.fsync))
    handle = life.prepare(PARTS.slice(0, 1))
    assert done == ["fsync file", "fsync held"]
    done.clear()
    monkeypatch.setattr(os, "link", noting("link", os.link))
    monkeypatch.setattr(Path, "unlink", noting("unlink", Path.unlink))
    life.commit(handle)
    assert (done[0], sorted(done[1:3]), done[3:]) == (
        "link file",
        ["fsync out", "fsync p=a"],
        ["unlink file", "fsync held"],
    )


def test_one_missing_file_keeps_the_others_of_its_transaction_back(tmp_path):
    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by="p"))
    handle, other = life.prepare(PARTS), life.prepare(PARTS, slot=1)
    files = read_handle(handle).files
    (root / ".sparkonce" / "held" / str(files[1]["held"])).unlink()
    assert life.commit(handle, other) == [Outcome.LOST, Outcome.COMMITTED]
    assert rows(root) == [1, 2, 3], "the other slot's"
    assert held(root) == [], "nobody can publish them any more"


def test_a_driver_that_looked_before_the_loss_publishes_nothing_after_it(tmp_path, monkeypatch):
    """The driver stalls between its check and its publishing.

    Meanwhile, a file is lost, and a newer driver declares the batch lost and writes it again. If the stalled driver
    published the remaining files, their rows would be duplicated.
    """
    root = tmp_path / "out"
    sleeper, newer = Life(FilesSink(root, partition_by="p")), Life(FilesSink(root, partition_by="p"))
    handle = sleeper.prepare(PARTS)
    publish = sleeper.committer._store.publish

    def sleep_first(files: Any) -> Any:
        held(root)[0].unlink()
        assert newer.commit(handle) == [Outcome.LOST]
        newer.run_batch(PARTS)
        return publish(files)

    monkeypatch.setattr(sleeper.committer._store, "publish", sleep_first)
    assert sleeper.commit(handle) == [Outcome.LOST]
    assert rows(root) == [1, 2, 3]


def test_a_driver_that_publishes_while_another_calls_the_batch_lost_is_seen(tmp_path, monkeypatch):
    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by="p"))
    handle = life.prepare(PARTS)
    held(root)[0].unlink()
    discard = life.committer._store.discard

    def too_late(files: Any) -> Any:
        local.LocalStore(root).publish(files)
        return discard(files)

    monkeypatch.setattr(life.committer._store, "discard", too_late)
    assert life.commit(handle) == [Outcome.UNKNOWN]
    assert len(rows(root)) == 2


def test_a_link_that_is_under_way_when_a_file_is_discarded_is_seen(tmp_path, monkeypatch):
    """Another driver's link call has found the file under its held name, and is executed when that name is gone.

    NFS refers to the file by its handle, which is valid as long as the file has any name.
    """
    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by="p"))
    handle = life.prepare(PARTS)
    held(root)[0].unlink()
    given_up = life.prepare(PARTS, slot=1)
    finals = {
        name.removesuffix(".held"): final(root, one, number)
        for one in (handle, given_up)
        for number, name in enumerate(held_names(one))
    }
    unlink = Path.unlink

    def link_first(path: Path, **given: Any) -> None:
        published = finals[path.stem]
        published.parent.mkdir(exist_ok=True)
        os.link(path, published)
        unlink(path, **given)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", link_first)
        assert life.commit(handle) == [Outcome.UNKNOWN]
        assert len(rows(root)) == 2, "so nothing of it may be written again"
        assert [one.outcome for one in life.committer.abort([given_up])] == [Outcome.ALREADY_COMMITTED]


def test_a_partitions_folder_that_somebody_deletes_is_not_a_loss(tmp_path, monkeypatch):
    """A job deletes the empty folder between its creation and the link. The file is still staged."""
    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by="p"))
    handle = life.prepare(PARTS.slice(0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(local.LocalStore, "_make", lambda *_: Finished(outcome=Outcome.COMMITTED))
        assert life.commit(handle) == [Outcome.RETRY]
    assert life.commit(handle) == [Outcome.COMMITTED]
    assert rows(root) == [1]


def test_a_bare_mount_point_that_was_written_to_once_is_not_a_loss(tmp_path):
    """The query once started without the disk, so the folder below the mount point also belongs to sparkonce."""
    root, disk, bare = tmp_path / "out", tmp_path / "disk", tmp_path / "bare"
    FilesSink(root).preflight(QUERY, None)
    root.rename(bare)
    life, parts = Life(FilesSink(root)), Life(FilesSink(root, name="parts", partition_by="p"))
    one, several = life.prepare(ONE), parts.prepare(PARTS)
    in_bare = bare / ".sparkonce" / "held" / held_names(several)[0]
    shutil.copy(root / ".sparkonce" / "held" / in_bare.name, in_bare)
    root.rename(disk)
    bare.rename(root)
    for answer in (*life.committer.commit([one]), *parts.committer.commit([several])):
        assert answer.outcome is Outcome.UNKNOWN
        assert "Is its disk mounted?" in answer.reason
    with pytest.raises(UnknownOutcomeError, match="mounted"):
        life.committer.conclude(0, [one])
    with pytest.raises(PrepareError, match="may not find the files here"):
        life.prepare(TWO)
    assert not (root / "_manifest").exists()
    assert in_bare.name in [path.name for path in held(root)], "what lies in another folder is left alone"
    root.rename(bare)
    disk.rename(root)
    assert life.commit(one) == [Outcome.COMMITTED]
    assert parts.commit(several) == [Outcome.COMMITTED]
    assert rows(root) == [1, 1, 2, 2, 3]


def test_a_backup_of_hard_links_publishes_nothing(tmp_path):
    """``cp -al`` gives each file another name, which must not publish staged files."""
    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by="p"))
    handle, lingering = life.prepare(PARTS), life.open(TWO.append_column("p", pa.array(["a", "a"])))
    lingering.prepare()
    subprocess.run(["cp", "-al", root, tmp_path / "backup"], check=True)
    assert [one.outcome for one in life.committer.abort([handle])] == [Outcome.ABORTED]
    swept = life.committer.abort(life.committer.list_lingering([life.owner]))
    assert [one.outcome for one in swept] == [Outcome.ABORTED]
    assert held(root) == []


def test_another_folder_at_the_same_path_is_refused(tmp_path):
    sink = FilesSink(tmp_path / "out")
    facts = sink.preflight(QUERY, None)
    (tmp_path / "out").rename(tmp_path / "moved")
    assert FilesSink(tmp_path / "moved").preflight(QUERY, facts) == facts, "a folder may be moved"
    with pytest.raises(PreflightError, match=r"this query wrote to until now: that one was deleted"):
        sink.preflight(QUERY, facts)


def test_the_id_can_be_put_back(tmp_path):
    """Somebody deletes it while the query runs, and the next start creates a new one. An editor adds a newline."""
    root = tmp_path / "out"
    sink = FilesSink(root)
    life = Life(sink)
    handle, name = life.prepare(ONE), life.owner.facts["folder"]
    (root / ".sparkonce" / "id").unlink()
    with pytest.raises(PrepareError, match=f"deleted that file: write {name} into it"):
        life.prepare(TWO, slot=1)
    assert life.commit(handle) == [Outcome.COMMITTED], "what is held here is of here"
    with pytest.raises(PreflightError, match=f"until now: .*folder='{name}'"):
        sink.preflight(QUERY, life.owner.facts)
    (root / ".sparkonce" / "id").write_text(f"{name}\n")
    assert sink.preflight(QUERY, life.owner.facts) == life.owner.facts
    life.run_batch(TWO, batch=1)
    assert rows(root) == [1, 2, 3, 4]


def test_partitions_whose_folders_would_be_one_are_refused(tmp_path, monkeypatch):
    """This happens on macOS. It is simulated: everything created can also be found under its upper-case name."""

    def folding(path: object) -> bool:
        here = Path(str(path))
        return here.name.lower() in {one.name.lower() for one in here.parent.iterdir()}

    assert FilesSink(tmp_path / "out", partition_by="p").preflight(QUERY, None)
    monkeypatch.setattr(os.path, "lexists", folding)
    with pytest.raises(PreflightError, match=r"partition_by=\['p'\] names folders by text .*'A' and 'a'"):
        FilesSink(tmp_path / "out", partition_by="p").preflight(QUERY, None)
    numbers = FilesSink(tmp_path / "out", partition_by="x")
    numbers.columns(PARTS.schema)
    assert numbers.preflight(QUERY, None), "numbers and dates have no case"
    assert FilesSink(tmp_path / "out").preflight(QUERY, None)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".sparkonce"], "the probes are gone"


def test_what_killed_starts_left_is_deleted_once_nobody_can_be_at_it(tmp_path):
    sink = FilesSink(tmp_path / "out")
    sink.preflight(QUERY, None)
    hidden = tmp_path / "out" / ".sparkonce"
    folders = [hidden, hidden / "held", hidden / "lists", tmp_path / "out" / "_manifest"]
    left = [folder / ".0123456789ab.tmp" for folder in folders]
    kept = [hidden / ".aaaaaaaaaaaa.tmp", hidden / "aside.tmp"]
    for path in (*left, *kept):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for path in {*left, *kept} - {kept[0]}:
        os.utime(path, (0, 0))
    sink.preflight(QUERY, None)
    there = {path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert there == {*kept, hidden / "id"}, "another query may be starting"


def test_old_manifests_are_merged_and_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(committer_module, "TIDY_EVERY", 3)
    monkeypatch.setattr(committer_module, "KEPT_BATCHES", 6)
    monkeypatch.setattr(manifests, "MERGED", 3)
    root = tmp_path / "out"
    life = Life(FilesSink(root))
    neighbour = Life(FilesSink(root, name="files.beside"))
    for batch in range(40):
        if batch != 4:  # a batch without rows
            life.run_batch(ONE, batch=batch)
        if batch < 2:
            neighbour.run_batch(TWO, batch=batch)
    names = {path.name for path in (root / "_manifest").iterdir()}
    assert len(names) < 20
    assert sum(".beside." in name for name in names) == 2, "a neighbour's are left alone"
    found = [(one.sink, one.batch) for one in read_manifests(root)]
    assert sorted(found) == [("files", n) for n in range(40) if n != 4] + [("files.beside", n) for n in range(2)]
    traces = life.committer.list_traces(QUERY, life.owner.facts)
    assert {trace.token for trace in traces} == {Token(7, "deadbeef")}


@pytest.mark.parametrize(("first", "step"), [(0, 1), (0, 2), (1, 2)])
def test_lists_of_old_batches_are_deleted(tmp_path, monkeypatch, first, step):
    """This also holds if every other batch has no rows, as in stateful queries."""
    monkeypatch.setattr(committer_module, "TIDY_EVERY", 2)
    monkeypatch.setattr(committer_module, "KEPT_BATCHES", 4)
    monkeypatch.setattr("sparkonce.sinks.files.store.LONGEST_BYTES", 10)
    life = Life(FilesSink(tmp_path / "out"))
    for batch in range(first, first + 8 * step, step):
        handles = life.run_batch(ONE, batch=batch)
    lists = list((tmp_path / "out" / ".sparkonce" / "lists").iterdir())
    assert 4 // step <= len(lists) <= 6
    assert life.commit(*handles) == [Outcome.ALREADY_COMMITTED]


def test_a_damaged_manifest_is_said_to_be(tmp_path):
    life = Life(FilesSink(tmp_path / "out"))
    life.run_batch(ONE)
    (path,) = (tmp_path / "out" / "_manifest").iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptRecordError, match=r"_manifest/.* cannot be read"):
        read_manifests(tmp_path / "out")
    path.write_text('{"sparkonce_manifest": 2}\n')
    with pytest.raises(CorruptRecordError, match="format 2"):
        read_manifests(tmp_path / "out")


# --- killed ---------------------------------------------------------------------------------------------------------


def test_killed_while_merging_manifests(tmp_path, monkeypatch):
    life = Life(FilesSink(tmp_path / "out"))
    for batch in range(5):
        life.run_batch(ONE, batch=batch)
    monkeypatch.setattr(manifests, "MERGED", 2)
    store = local.LocalStore(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(local.LocalStore, "delete", killed)
        with pytest.raises(KilledError):
            manifests.merge(store, "files", QUERY, 4)
    assert [one.batch for one in read_manifests(tmp_path / "out")] == [0, 1, 2, 3, 4], "none twice"
    manifests.merge(store, "files", QUERY, 4)
    assert [one.batch for one in read_manifests(tmp_path / "out")] == [0, 1, 2, 3, 4]
    assert len(list((tmp_path / "out" / "_manifest").iterdir())) == 2


# --- the folder and its disk ----------------------------------------------------------------------------------------


def test_the_names_of_new_folders_are_durable(tmp_path, monkeypatch):
    synced: list[Path] = []
    call = local.sync_folder

    def noted(folder: Path) -> None:
        synced.append(folder)
        call(folder)

    for module in (local, local_files):
        monkeypatch.setattr(module, "sync_folder", noted)
    root = tmp_path / "new" / "out"
    FilesSink(root).preflight(QUERY, None)
    assert {root / ".sparkonce", root, root.parent, tmp_path} <= set(synced)
    # Another driver may have created a folder and died before the folder was durable.
    (root / ".sparkonce" / "lists").mkdir()
    synced.clear()
    local.LocalStore(root).put(".sparkonce/lists/one", b"[]")
    lists = root / ".sparkonce" / "lists"
    assert synced == [lists, root / ".sparkonce", lists], "the folder and its name first, then the file's"


def test_another_file_at_the_final_path_is_never_overwritten(tmp_path):
    root = tmp_path / "out"
    life = Life(FilesSink(root))
    handle = life.prepare(ONE)
    final(root, handle).write_bytes(b"somebody's")
    (answer,) = life.committer.commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "never overwritten" in answer.reason
    assert final(root, handle).read_bytes() == b"somebody's"
    # In a folder restored from a backup, one file with two names has become two files.
    shutil.copy(held(root)[0], final(root, handle))
    assert life.commit(handle) == [Outcome.ALREADY_COMMITTED]
    assert held(root) == []


def test_a_missing_folder_is_not_a_loss(tmp_path):
    """If slot 1 were lost, it would be written twice as soon as the disk is back."""
    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by="p"))
    first, second = life.prepare(PARTS), life.prepare(PARTS, slot=1)
    alone = Life(FilesSink(root, name="alone"))
    single = alone.prepare(TWO)
    assert life.commit(first) == [Outcome.COMMITTED]
    root.rename(tmp_path / "unmounted")
    for answer in life.committer.commit([first, second]):
        assert answer.outcome is Outcome.RETRY
        assert "mounted" in answer.reason
    root.mkdir()
    (answer,) = alone.committer.commit([single])
    assert answer.outcome is Outcome.UNKNOWN
    assert "mounted" in answer.reason
    root.rmdir()
    (tmp_path / "unmounted").rename(root)
    assert alone.commit(single) == [Outcome.COMMITTED]
    assert life.commit(first, second) == [Outcome.ALREADY_COMMITTED, Outcome.COMMITTED]
    assert rows(root) == [1, 1, 2, 2, 3, 3, 3, 4]


def test_a_disk_that_is_mounted_while_a_loss_is_judged(tmp_path, monkeypatch):
    root, disk, bare = tmp_path / "out", tmp_path / "disk", tmp_path / "bare"
    FilesSink(root).preflight(QUERY, None)
    root.rename(bare)
    life = Life(FilesSink(root))
    handle = life.prepare(PARTS)
    root.rename(disk)
    bare.rename(root)
    doubt = life.committer._store.doubt

    def mount_first(folder: str) -> Finished | None:
        root.rename(bare)
        disk.rename(root)
        return doubt(folder)

    with monkeypatch.context() as patch:
        patch.setattr(life.committer._store, "doubt", mount_first)
        assert life.commit(handle) == [Outcome.RETRY]
    assert life.commit(handle) == [Outcome.COMMITTED]


def test_names_that_a_mounts_cache_hides_are_not_lost(tmp_path, monkeypatch):
    """Simulated: neither name is found, and a fresh listing has one of them."""
    root = tmp_path / "out"
    life = Life(FilesSink(root))
    handle = life.prepare(ONE)
    (name,) = held(root)
    name.rename(tmp_path / name.name)
    with monkeypatch.context() as patch:
        patch.setattr(local, "_is_listed", lambda *_: True)
        for answer in [*life.committer.commit([handle]), *life.committer.abort([handle])]:
            assert answer.outcome is Outcome.RETRY
            assert "cache" in answer.reason
    (tmp_path / name.name).rename(name)
    assert life.commit(handle) == [Outcome.COMMITTED]


def test_names_that_are_too_long_are_refused_before_the_decision(tmp_path):
    life = Life(FilesSink(tmp_path / "out", partition_by=("p", "q")))
    with pytest.raises(PrepareError, match=r"'q=xxx.*has 302 bytes.*allows 255"):
        life.prepare(pa.table({"x": [1], "p": ["new"], "q": ["x" * 300]}))
    # Each name is short enough, and the folder can be created, but the whole path of the file in it is too long.
    longest = os.pathconf(tmp_path, "PC_PATH_MAX") - 1
    room = longest - 20 - len(str(tmp_path / "out"))
    many = room // 101 - 1
    values = {f"p{number:02}": ["x" * 96] for number in range(many)} | {"q": ["x" * (room - many * 101 - 3)]}
    life = Life(FilesSink(tmp_path / "out", partition_by=tuple(values)))
    with pytest.raises(PrepareError, match=rf"path of a file would be .*bytes, and the file system allows {longest}"):
        life.prepare(pa.table({"x": [1], **values}))


def test_a_partition_on_another_file_system_is_an_error(tmp_path):
    root = tmp_path / "out"
    disks = map(Path, ("/dev/shm", "/var/tmp"))  # noqa: S108 - the tests' files are on one of them
    with tempfile.TemporaryDirectory(
        dir=next(one for one in disks if one.stat().st_dev != root.parent.stat().st_dev)
    ) as other:
        life = Life(FilesSink(root, partition_by="p"))
        early = life.prepare(PARTS)
        (root / "p=b").symlink_to(other)
        with pytest.raises(PrepareError, match="another file system"):
            life.prepare(PARTS, batch=1)
        (answer,) = life.committer.commit([early])
        assert answer.outcome is Outcome.UNKNOWN
        assert "EXDEV" in answer.reason
        (root / "p=b").unlink()
        assert life.commit(early) != [Outcome.LOST]
        assert rows(root) == [1, 2, 3]


@pytest.mark.parametrize("format", ["parquet", "csv", "json", "arrow"])
def test_no_room_at_prepare_leaves_nothing(tmp_path, format):  # noqa: A002
    root = tmp_path / "out"
    life = Life(FilesSink(root, format=format))
    writer = life.open()
    table = pa.table({"x": np.random.default_rng(1).integers(0, 2**62, 400_000)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(PrepareError, match=r"\.sparkonce/held/.* could not be written: File too"):  # noqa: PT012
            for piece in table.to_batches(max_chunksize=50_000):
                writer.write(piece)
            writer.prepare()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    writer.abort()
    assert held(root) == []
    assert rows(root) == []


def test_a_full_disk_names_the_path():
    full = Path("/dev/full")
    stream = ChecksumStream(full.open("wb", buffering=0), full)
    with pytest.raises(PrepareError, match=r"/dev/full could not be written: No space left .* Next: Free some space"):
        stream.write(b"x")
    stream.file.close()


def test_no_permission(tmp_path):
    root = tmp_path / "out"
    life = Life(FilesSink(root))
    handle, linked = life.prepare(ONE), life.prepare(TWO, slot=1)
    for folder in (one for one in (tmp_path, *tmp_path.parents) if "pytest" in str(one)):  # pytest's own are private
        folder.chmod(0o755)
    hidden = root / ".sparkonce" / "held"
    (hidden / held_names(linked)[0]).chmod(0o666)  # so that it can be linked
    root.chmod(0o777)
    hidden.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:  # root is allowed to do everything
        os.seteuid(65534)
    try:
        with pytest.raises(PrepareError, match=r"held/.*Permission denied"):
            life.open()
        (answer,) = life.committer.commit([linked])
        assert rows(root) == [3, 4]
        assert answer.outcome is Outcome.UNKNOWN, "once the batch is whole, a held name would be published again"
        assert "let this user write to the folder" in answer.reason
        if is_root:
            os.seteuid(0)
        root.chmod(0o555)
        if is_root:
            os.seteuid(65534)
        with pytest.raises(PreflightError, match=r"cannot be written to: Permission denied"):
            FilesSink(root).preflight(QUERY, None)
        (answer,) = life.committer.commit([handle])
        assert answer.outcome is Outcome.UNKNOWN
        assert "let this user write" in answer.reason
    finally:
        if is_root:
            os.seteuid(0)
        root.chmod(0o755)
        hidden.chmod(0o755)
    assert life.commit(handle, linked) == [Outcome.COMMITTED, Outcome.ALREADY_COMMITTED]
    assert held(root) == []


def test_a_folder_that_cannot_hold_files_is_refused(tmp_path, monkeypatch):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(PreflightError, match=r"needs a folder, and .* is a file"):
        FilesSink(tmp_path / "out").preflight(QUERY, None)

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(PreflightError, match="is on a file system without hard links"):
        FilesSink(tmp_path / "other").preflight(QUERY, None)


def test_a_folder_that_is_gone_is_not_called_a_full_disk(tmp_path):
    life = Life(FilesSink(tmp_path / "out"))
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(PrepareError, match="could not be written: No such file") as told:
        life.prepare(pa.table({"number": [1]}))
    assert told.value.next_step.startswith(
        "Find out what happened to the folder: it was deleted or moved, or its disk is not"
    )


# --- prepared files that are changed before the commit, by somebody or by a disk ------------------------------------


def truncate(path: Path) -> None:
    os.truncate(path, 10)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"PAR1")


def fill_with_zeros(path: Path) -> None:
    """Simulates a file system whose journal knew the file's size, but whose disk lost the blocks."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("partition_by", [(), ("p",)])
@pytest.mark.parametrize("damage", [truncate, grow, fill_with_zeros])
def test_a_damaged_file_is_not_published_but_lost(tmp_path, damage, partition_by):
    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by=partition_by))
    handle, other = life.prepare(PARTS), life.prepare(PARTS, slot=1)
    damage(next(path for path in held(root) if str(handle["name"]) in path.name))
    lost, committed = life.committer.commit([handle, other])
    assert (lost.outcome, committed.outcome) == (Outcome.LOST, Outcome.COMMITTED)
    assert "not as it was written" in lost.reason
    assert rows(root) == [1, 2, 3], "the other slot's"
    assert held(root) == [], "nobody can publish what is left"
    assert life.commit(handle) == [Outcome.LOST]


@pytest.mark.parametrize("partition_by", [(), ("p",)])
def test_a_file_that_is_damaged_and_published_is_not_called_lost(tmp_path, monkeypatch, partition_by):
    """Readers may have read it when it was whole. It has both names, as after a kill."""

    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by=partition_by))
    handle = life.prepare(PARTS)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KilledError):
            life.commit(handle)
    for path in held(root):
        truncate(path)
    assert life.commit(handle) == [Outcome.UNKNOWN]
    assert len(held(root)) == len(published(root)) == (3 if partition_by else 1), "nothing is deleted"
    for path in published(root):
        path.unlink()
    assert life.commit(handle) == [Outcome.LOST], "its files were moved away, as the page says"


@pytest.mark.parametrize("partition_by", [(), ("p",)])
def test_a_copy_that_is_damaged_beside_the_published_file_is_taken_away(tmp_path, partition_by):
    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by=partition_by))
    handle = life.prepare(PARTS)
    names = [path.name for path in held(root)]
    assert life.commit(handle) == [Outcome.COMMITTED]
    for name in names:
        (root / ".sparkonce" / "held" / name).write_bytes(b"of a backup")
    assert life.commit(handle) == [Outcome.ALREADY_COMMITTED]
    assert held(root) == []
    assert rows(root) == [1, 2, 3]


@pytest.mark.parametrize("slots_damaged", [1, 2])
def test_the_rows_of_a_damaged_file_are_written_again(tmp_path, slots_damaged):
    root = tmp_path / "out"

    def batch(number: int, slot: int) -> pa.RecordBatch:
        return pa.record_batch({"x": [100 * number + 10 * slot + one for one in range(3)]})

    def damage() -> None:
        assert len(held(root)) == 2
        for path in held(root)[:slots_damaged]:
            truncate(path)

    job = SmallJob(tmp_path / "checkpoint", lambda: [FilesSink(root)], batch)
    job.run(0)
    job.kill(1, Phase.FINISHING, damage)
    assert rows(root) == [0, 1, 2, 10, 11, 12]
    job.run(1, 2)
    assert rows(root) == sorted(
        one for number in range(3) for slot in range(2) for one in batch(number, slot)["x"].to_pylist()
    )
    assert [one.rows for one in read_manifests(root)] == [6, 6, 6]
    assert held(root) == []


def test_a_driver_that_is_about_to_publish_what_another_calls_lost_publishes_nothing(tmp_path, monkeypatch):
    """One driver has checked a file that is damaged afterwards; a newer driver writes its rows again."""
    root = tmp_path / "out"
    sleeper, newer = Life(FilesSink(root)), Life(FilesSink(root))
    handle = sleeper.prepare(PARTS)
    link = os.link

    def sleep_first(*arguments: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        truncate(held(root)[0])
        assert newer.commit(handle) == [Outcome.LOST]
        newer.run_batch(PARTS)
        link(*arguments)

    monkeypatch.setattr(os, "link", sleep_first)
    assert sleeper.commit(handle) == [Outcome.LOST]
    assert rows(root) == [1, 2, 3]
