"""The location of a checkpoint, and of a folder in which rows wait, as Spark reads it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkonce.errors import ConfigurationError
from sparkonce.storage.location import checked_location, local_folder


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ("/data/checkpoint", "/data/checkpoint"),
        ("file:/data/checkpoint", "/data/checkpoint"),
        ("file:///data/checkpoint", "/data/checkpoint"),
        ("file:///data/a%20b", "/data/a%20b"),
        ("file:///data/a b?c#d", "/data/a b?c#d"),
        ("file://localhost/data/checkpoint", "/data/checkpoint"),
        ("/data/a b", "/data/a b"),
        ("/data/100%25", "/data/100%25"),
    ],
)
def test_local_places(given: str, folder: str) -> None:
    assert checked_location(given) == given
    assert local_folder(given) == Path(folder)


@pytest.mark.parametrize("given", ["s3a://bucket/c", "hdfs://node:8020/c", "hdfs:/c", "abfss://b@a.net/c", "gs://b/c"])
def test_places_that_spark_reaches(given: str) -> None:
    assert checked_location(given) == checked_location(f"{given}/") == given


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("s3://bucket/checkpoint", "as s3a://"),
        ("wasbs://c@a.net/c", "as abfss://"),
        ("dbfs:/c", "/dbfs/… is the same folder"),
        ("ftp://host/c", "Give a path, or a URL with one of file, hdfs"),
    ],
)
def test_places_that_may_not_put_a_file_once_are_refused(given: str, advice: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"checkpoint='{given}': .* is not known to be able to put a file"
    ) as caught:
        checked_location(given)
    assert advice in caught.value.next_step


@pytest.mark.parametrize("given", [Path("s3a://bucket/c"), "s3a:///bucket/c", "abfss:/b@a.net/c", Path("gs://b/c")])
def test_a_url_whose_bucket_is_lost_is_refused(given: str | Path) -> None:
    with pytest.raises(ConfigurationError, match="names no bucket: two slashes") as caught:
        checked_location(given)
    assert f"'{str(given).partition(':')[0]}://bucket/" in caught.value.next_step


@pytest.mark.parametrize("given", ["c", "c/d", "./c", "file:c"])
def test_a_place_that_depends_on_the_working_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="is relative to this process's working folder") as caught:
        checked_location(given)
    assert str(tmp_path / "c") in caught.value.next_step


@pytest.mark.parametrize(
    ("given", "told"), [("", "names no folder"), ("~/c", "which is not expanded"), (None, "no folder")]
)
def test_what_names_no_folder_is_refused(given: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"checkpoint={given!r} .*{told}"):
        checked_location(given)


def test_a_place_that_is_no_url_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is not a URL: Invalid IPv6"):
        checked_location("file://[x/checkpoint")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", "names no folder"),
        ("rows", "another folder would not find the rows"),
        ("s3://bucket/rows", "a sink whose rows wait there needs that"),
        ("file://[x/rows", "is not a URL"),
    ],
)
def test_a_folder_of_rows_is_called_by_its_own_setting(given: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{re.escape(repr(given))}.* {told}") as caught:
        checked_location(given, "folder")
    assert str(caught.value).startswith("folder=")
