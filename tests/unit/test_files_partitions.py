from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparkonce.errors import ConfigurationError, PreflightError, PrepareError
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks.files.hdfs import of_error as of_hdfs_error
from sparkonce.sinks.files.local import of_error
from sparkonce.sinks.files.locations import overlaps
from sparkonce.sinks.files.names import escape, folder_of, split, values_of
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.files.store import FileState, before_publish, of_abort, of_commit
from sparkonce.storage.local import LocalFiles


def test_odd_characters_are_escaped_as_spark_does():
    odd = "a/b=c:d%e'f\"g*h?i\\j{k[l]m^n#o\n"
    assert escape(odd) == "a%2Fb%3Dc%3Ad%25e%27f%22g%2Ah%3Fi%5Cj%7Bk%5Bl%5Dm%5En%23o%0A"
    assert escape("plain é 😀 + & ~ } ,") == "plain é 😀 + & ~ } ,"

    folder = folder_of(["a=b", "c", "d"], [odd, None, "3"])
    assert values_of(folder) == {"a=b": odd, "c": None, "d": "3"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (pa.array([None], pa.int32()), "__HIVE_DEFAULT_PARTITION__"),
        (pa.array([""]), "__HIVE_DEFAULT_PARTITION__"),
        (pa.array([True]), "true"),
        (pa.array([-5]), "-5"),
        (pa.array([dt.date(2024, 2, 29)]), "2024-02-29"),
        (pa.array([2_932_897], pa.int32()).cast(pa.date32()), "+10000-01-01"),
        (pa.array([-(2**31)], pa.int32()).cast(pa.date32()), "-5877641-06-23"),
        (pa.array([Decimal("0.0000000001")]), "0.0000000001"),
        (pa.array([Decimal("12.50")]), "12.50"),
        (pa.array([Decimal("0")], pa.decimal128(38, 18)), "0.000000000000000000"),
    ],
)
def test_values_name_folders(value, text):
    ((folder, _),) = split(pa.table({"x": value, "y": [1]}), ["x"])
    assert folder == f"x={text}"


def test_a_string_that_is_not_utf8_names_no_folder():
    text = pa.array([b"fine", b"a\xffb"]).view(pa.string())
    with pytest.raises(PrepareError, match=r"Column 'x' has a string that is not UTF-8: .* 0xff at position 1"):
        list(split(pa.table({"x": text, "y": [1, 2]}), ["x"]))


def test_rows_are_split_and_keep_their_order():
    names = ["x", None, "y", "x", "", "y"] * 50
    days = [dt.date(2024, 1, 1 + number % 3) for number in range(300)]
    rows = pa.table({"id": range(300), "s": names, "day": days})
    found = dict(split(pa.concat_tables([rows.slice(0, 100), rows.slice(100)]), ["s", "day"]))
    assert set(found) == {folder_of(["s", "day"], [s, str(day)]) for s, day in zip(names, days, strict=True) if s != ""}
    for folder, part in found.items():
        ids = part.column("id").to_pylist()
        assert part.column_names == ["id"]
        assert [folder_of(["s", "day"], [names[one], str(days[one])]) for one in ids] == [folder] * len(ids)
        own = [one for one in ids if names[one] is None], [one for one in ids if names[one] is not None]
        assert all(part == sorted(part) for part in own)


@pytest.mark.parametrize(
    ("standings", "wanted"),
    [
        ("HH", None),
        ("HP", None),
        ("PP", Outcome.ALREADY_COMMITTED),
        ("HG", Outcome.LOST),
        ("GG", Outcome.LOST),
        ("PG", Outcome.UNKNOWN),
        ("HPG", Outcome.UNKNOWN),
        ("HU", Outcome.UNKNOWN),
        ("GU", Outcome.UNKNOWN),
    ],
)
def test_several_files_are_published_only_if_all_can_be(standings, wanted):
    kinds = {"H": FileState.STAGED, "P": FileState.PUBLISHED, "G": FileState.GONE, "U": FileState.UNKNOWN}
    files = [{"path": f"file{number}"} for number in range(len(standings))]
    found = before_publish(files, [kinds[one] for one in standings])
    assert (found and found.outcome) == wanted


def outcomes(text: str) -> list[Finished]:
    kinds = {"C": Outcome.COMMITTED, "a": Outcome.ALREADY_COMMITTED, "L": Outcome.LOST, "R": Outcome.RETRY}
    return [Finished(outcome={**kinds, "U": Outcome.UNKNOWN, "A": Outcome.ABORTED}[one]) for one in text]


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ("C", Outcome.COMMITTED),
        ("aa", Outcome.ALREADY_COMMITTED),
        ("Ca", Outcome.COMMITTED),
        ("CR", Outcome.RETRY),
        ("L", Outcome.LOST),
        ("LL", Outcome.LOST),
        ("LC", Outcome.UNKNOWN),
        ("LR", Outcome.UNKNOWN),
        ("UC", Outcome.UNKNOWN),
    ],
)
def test_the_files_of_a_transaction_make_one_outcome(files, wanted):
    assert of_commit(outcomes(files)).outcome is wanted


@pytest.mark.parametrize(
    ("files", "wanted"),
    [("AA", Outcome.ABORTED), ("Aa", Outcome.ALREADY_COMMITTED), ("AR", Outcome.RETRY), ("aU", Outcome.UNKNOWN)],
)
def test_the_files_of_an_abort_make_one_outcome(files, wanted):
    assert of_abort(outcomes(files)).outcome is wanted


def test_what_is_not_listed_is_unknown():
    assert of_error(OSError(9999, "odd"), "/x").outcome is Outcome.UNKNOWN
    assert of_error(OSError("no number"), "/x").outcome is Outcome.UNKNOWN
    assert of_error(OSError(28, "full"), "/x") == Finished(
        outcome=Outcome.RETRY,
        reason="/x: ENOSPC. The disk is full, and a new name needs room in its folder, too: free some.",
    )
    assert of_hdfs_error(RuntimeError("RPCError(odd)"), "/x").outcome is Outcome.UNKNOWN
    assert of_hdfs_error(TimeoutError("no answer"), "/x").outcome is Outcome.RETRY
    denied = RuntimeError('RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied\\n\\tat")')
    assert of_hdfs_error(denied, "/x").outcome is Outcome.UNKNOWN
    assert "let this user write" in of_hdfs_error(denied, "/x").reason


@pytest.mark.parametrize("path", ["orders", "./orders", "file:orders"])
def test_a_relative_path_is_refused_at_once(path):
    """Workers have different working directories, and would write to the wrong folder or fail."""
    with pytest.raises(ConfigurationError, match="is relative to this process's working folder") as told:
        FilesSink(path)
    assert str(Path.cwd() / "orders") in str(told.value)

    FilesSink("~/orders")


def test_rows_and_checkpoint_do_not_share_a_folder(tmp_path):
    checkpoint = LocalFiles(tmp_path / "checkpoint")
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path, tmp_path / "checkpoint", tmp_path / "checkpoint" / "rows", tmp_path / "link"):
        for given in (str(path), path.as_uri()):
            with pytest.raises(ConfigurationError, match="are one folder, or one lies inside the other"):
                FilesSink(given).use_checkpoint(checkpoint)
    FilesSink(tmp_path / "checkpoint-rows").use_checkpoint(checkpoint)

    assert overlaps("s3://bucket/rows", "s3a://bucket/rows/checkpoint")
    assert overlaps("hdfs://node:8020/a/b", "hdfs://node:8020/a")
    assert not overlaps("s3://bucket/rows", "s3a://bucket/rows-2")
    assert not overlaps("s3://other/rows", "s3a://bucket/rows")
    assert not overlaps("/rows", "s3a://bucket/rows")


@pytest.mark.parametrize("inside", ["", "folder"])
def test_a_path_that_is_a_file_is_called_one(tmp_path, inside):
    (file := tmp_path / "orders").write_text("mine")
    with pytest.raises(PreflightError, match=r"needs a folder, and .*/orders is a file. Next: Name another folder"):
        FilesSink(file / inside).preflight("0" * 12, None)
    assert file.read_text() == "mine"


def test_many_partitions_of_many_columns():
    numbers = np.arange(70_000)
    rows = pa.table({"id": numbers, "a": numbers, "b": numbers % 7})
    parts = list(split(rows, ["a", "b"]))
    assert len(parts) == 70_000
    assert parts[69_999][0] == "a=69999/b=6"
    assert parts[69_999][1].column("id").to_pylist() == [69_999]
