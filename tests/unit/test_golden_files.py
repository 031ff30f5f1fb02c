"""Small files beside the rows, of every version: manifests, lists, the write-ahead sinks' notes, and their rows.

What they lead to is in `test_golden_drivers.py`; here is what stands in them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from golden.kept import (
    CHANGED,
    DECIDED,
    FINISHED,
    HERE,
    KILLED,
    NEWEST,
    SHORT,
    STATES,
    UNDECIDED,
    VERSIONS,
    copy,
    state,
)
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.errors import CorruptRecordError
from sparkonce.files import compact
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks.files import manifests
from sparkonce.sinks.files.local.store import LocalStore
from sparkonce.sinks.files.manifests import CommittedFile, Manifest, ManifestName
from sparkonce.sinks.files.names import ID, file_path, name_in
from sparkonce.sinks.files.reading import read_manifests, whole_batches
from sparkonce.sinks.write_ahead import rows as waiting_rows
from sparkonce.sinks.write_ahead.disk import DiskFolder
from sparkonce.sinks.write_ahead.entry import Entry
from sparkonce.sinks.write_ahead.folder import RowsState
from sparkonce.sinks.write_ahead.ledger import Ledger, entries_of, text_of
from sparkonce.sinks.write_ahead.sink import FOLDER, LEDGER
from sparkonce.spark.tables.table import Label

EACH_VERSION = pytest.mark.parametrize("version", VERSIONS)
EACH_STATE = pytest.mark.parametrize("name", STATES)
FOLDERS = {"files": "plain", "files.days": "days", "files.list": "list"}
WAITING = {"write-ahead": "write-ahead", "orders.eu": "orders%2Eeu", "delta": "delta", "iceberg": "iceberg"}


def files(version: str, name: str, sink: str) -> Path:
    return state(version, name) / "files" / FOLDERS[sink]


def folder_of(made: Path, sink: str) -> DiskFolder:
    root = made / "checkpoint" / FOLDER / WAITING[sink]
    return DiskFolder(root, Ledger(LocalFiles(root / LEDGER)))


# --- the files sink --------------------------------------------------------------------------------------------------


def test_a_compacted_folder_is_read_and_compacted_further(tmp_path: Path) -> None:
    """Reads a folder of v1 after ``compact(folder, keep_batches=2)`` of the first version that had it."""
    folder = tmp_path / "plain"
    shutil.copytree(HERE / "compacted" / "plain", folder)
    (folder / ".sparkonce" / "held").mkdir(parents=True)
    before = read_manifests(files("v1", FINISHED, "files"))
    compacted, *single = read_manifests(folder)
    assert single == before[-2:]
    assert (compacted.compacted, compacted.batch) == (((0, 4),), 4)
    assert compacted.rows == sum(one.rows for one in before[:-2]) == 36
    assert len(whole_batches(folder)) == 1 + sum(len(one.files) for one in single)
    (done,) = compact(folder, keep_batches=2, delete_after_s=0)
    assert done.deleted == sum(len(one.files) for one in before[:-2])
    assert read_manifests(folder) == [compacted, *single]
    assert sorted(map(str, folder.rglob("*.json"))) == sorted(whole_batches(folder))


def test_what_manifests_names_say() -> None:
    found = {name.text: name for name in manifests.list_manifests(LocalStore(files("v1", FINISHED, "files")))}
    run = Token(7, "1460936b")
    assert found[f"files.{SHORT}.7-1460936b.6.manifest"] == ManifestName(
        text=f"files.{SHORT}.7-1460936b.6.manifest", prefix="files", query=SHORT, token=run, first=6, last=6
    )
    merged = f"files.{SHORT}.0-1.merged"
    assert found[merged] == ManifestName(text=merged, prefix="files", query=SHORT, token=None, first=0, last=1)
    assert len(found) == 6


def test_what_a_manifest_says() -> None:
    (found,) = [one for one in read_manifests(files("v1", FINISHED, "files.days")) if one.batch == 4]
    first, second = (path for path in (one.path for one in found.files) if path.startswith("half=h0/"))
    assert found == Manifest(
        sink="files.days",
        prefix="files.days",
        query=SHORT,
        token=Token(7, "1460936b"),
        batch=4,
        files=found.files,
        transactions=found.transactions,
    )
    assert found.files[0] == CommittedFile(path=first, rows=2, size_bytes=70, checksum=found.files[0].checksum)
    assert found.files[0].partition == {"half": "h0"}
    assert found.files[0].checksum.startswith("crc32:")
    assert (name_in(first), name_in(second)) == tuple(
        TransactionName.parse(str(one["name"])) for one in found.transactions
    )
    whole = whole_batches(files("v1", FINISHED, "files.days"), missing_ok=True)
    assert {Path(path).name for path in whole} >= {Path(first).name, Path(second).name}


@EACH_VERSION
@EACH_STATE
@pytest.mark.parametrize("sink", FOLDERS)
def test_manifests_are_read_and_would_be_written_alike(version: str, name: str, sink: str, tmp_path: Path) -> None:
    golden = LocalStore(files(version, name, sink))
    copied = LocalStore(tmp_path)
    copied.check()
    names = manifests.list_manifests(golden)
    assert len(names) == (6 if name == FINISHED else 3)
    for one in names:
        batches = manifests.read(golden, one)
        assert [batch.batch for batch in batches] == list(range(one.first, one.last + 1))
        for batch in batches:
            manifests.write(copied, batch)
    single = [one.text for one in names if one.token is not None]
    assert len(single) >= 3
    for text in single:
        path = f"{manifests.FOLDER}/{text}"
        assert copied.get(path) == golden.get(path), CHANGED.format(version=version)


def test_merged_manifests_would_be_written_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MERGED", 2)
    before = files(NEWEST, DECIDED, "files") / manifests.FOLDER
    shutil.copytree(before, tmp_path / manifests.FOLDER)
    store = LocalStore(tmp_path)
    store.check()
    manifests.merge(store, "files", SHORT, 2)
    merged = f"{manifests.FOLDER}/files.{SHORT}.0-1.merged"
    golden = files(NEWEST, FINISHED, "files") / merged
    assert (tmp_path / merged).read_bytes() == golden.read_bytes(), CHANGED.format(version=NEWEST)


def test_a_manifest_of_a_newer_version_is_refused_by_its_number(tmp_path: Path) -> None:
    made = copy(NEWEST, FINISHED, tmp_path) / "files" / "plain"
    for path in (made / manifests.FOLDER).iterdir():
        path.write_bytes(path.read_bytes().replace(b'{"sparkonce_manifest": 1}', b'{"sparkonce_manifest": 2}', 1))
    with pytest.raises(CorruptRecordError, match=r"\.(manifest|merged) has format 2, and this version knows 1"):
        read_manifests(made)


@EACH_VERSION
@EACH_STATE
@pytest.mark.parametrize("sink", FOLDERS)
def test_held_and_published_files_are_named_alike(version: str, name: str, sink: str) -> None:
    root = files(version, name, sink)
    held = [one.name for one in LocalStore(root).list_staged()]
    assert len(held) == {"files": 2, "files.days": 4, "files.list": 8}[sink] * (name != FINISHED)
    assert {(one.prefix, one.query, one.batch) for one in held} <= {(sink, SHORT, KILLED)}
    published = [path for path in root.rglob("part-*.json") if ".sparkonce" not in path.parts]
    for path in published:
        found = name_in(path.name)
        assert found is not None
        number = int(path.stem.rpartition("-")[2])
        assert file_path("", found, number, ".json") == path.name, CHANGED.format(version=version)
    assert len((root / ID).read_text()) == 32


# --- the write-ahead sinks -------------------------------------------------------------------------------------------


@EACH_VERSION
@EACH_STATE
@pytest.mark.parametrize("sink", WAITING)
def test_notes_are_read_and_would_be_written_alike(version: str, name: str, sink: str, tmp_path: Path) -> None:
    root = state(version, name) / "checkpoint" / FOLDER / WAITING[sink]
    notes = sorted([*(root / RowsState.DONE.value).iterdir(), *(root / LEDGER / "begun").iterdir()])
    assert notes
    for path in notes:
        entries = entries_of(path.read_bytes(), "")
        assert {(one.name.prefix, one.name.query) for one in entries} == {(WAITING[sink], SHORT)}
        assert text_of(entries) == path.read_bytes(), CHANGED.format(version=version)
    folder = folder_of(copy(version, name, tmp_path), sink)
    assert (folder.identity(), folder.ledger.identity()) == (
        (root / "identity").read_text(),
        (root / LEDGER / "identity").read_text(),
    )
    per_batch = sink != "write-ahead"
    first, last = (3, 6) if name == FINISHED else (0, 2)
    assert folder.ledger.forgotten_up_to(SHORT) == first - 1
    for batch in range(last + 2):
        (group,) = folder.ledger.begun(SHORT, batch) if first <= batch <= last else [[]]
        slots = 0 if not first <= batch <= last else 1 if batch == 1 else 2
        assert [one.name.slot for one in group] == list(range(slots))
        for call in ([group] if per_batch else [[one] for one in group]) if group else []:
            assert folder.done(call[0].name) == call
            assert folder.find(call[0].name) is RowsState.DONE


@EACH_VERSION
@pytest.mark.parametrize("name", [UNDECIDED, DECIDED])
@pytest.mark.parametrize("sink", WAITING)
def test_rows_that_wait_are_whole_and_can_be_read(version: str, name: str, sink: str, tmp_path: Path) -> None:
    made = copy(version, name, tmp_path)
    folder = folder_of(made, sink)
    names = sorted(folder.names(RowsState.PREPARED.value), key=lambda one: one.slot)
    assert [one.slot for one in names] == [0, 1]
    handles = json.loads((made / "expected.json").read_text())["newest handles"][sink]
    told = {str(one["transaction"].get("name")): one["transaction"] for one in handles}
    for one in names:
        with folder.path(RowsState.PREPARED, one).open("rb") as file:
            if name == DECIDED:
                entry = Entry.of_fields(told[str(one)])
                assert entry is not None
                waiting_rows.check(file, entry.size_bytes, entry.checksum)
            found = waiting_rows.read([file], []).read_all()
        numbers = [300 + 10 * one.slot + place for place in range(3)]
        assert found.schema == pa.schema([("number", pa.int64()), ("word", pa.string())])
        assert found.to_pydict() == {"number": numbers, "word": [f"word {number}" for number in numbers]}


@pytest.mark.parametrize("sink", ["delta", "iceberg"])
def test_a_tables_label_is_made_of_the_note_that_came_before_it(sink: str) -> None:
    """The two are compared: a label made in another way would not be found, and the rows be written again."""
    made = state(NEWEST, FINISHED)
    said = json.loads((made / "servers.json").read_text())
    texts = (
        [one["userMetadata"] for one in said["delta"]] if sink == "delta" else said["iceberg"]["properties"].values()
    )
    labels = [Label.of_text(text) for text in texts]
    begun = sorted((made / "checkpoint" / FOLDER / sink / LEDGER / "begun").iterdir())
    assert len(begun) == 4
    for path in begun:
        assert Label.of(entries_of(path.read_bytes(), "")) in labels, CHANGED.format(version=NEWEST)


@pytest.mark.parametrize("change", ['"size_bytes"', '"checksum"'], ids=["a field more", "another name"])
def test_a_note_of_another_version_is_refused(change: str, tmp_path: Path) -> None:
    """Its rows may have been applied: what is not understood is not nothing."""
    folder = folder_of(copy(NEWEST, FINISHED, tmp_path), "write-ahead")
    path = folder.root / LEDGER / "begun" / f"{SHORT}.6.0"
    new = f'"colour": "red", {change}' if change == '"size_bytes"' else '"digest"'
    path.write_text(path.read_text().replace(change, new))
    with pytest.raises(OSError, match="entries that this version does not know: it is damaged, or of another version"):
        folder.ledger.begun(SHORT, 6)
