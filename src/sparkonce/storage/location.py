"""Parses the location of a checkpoint as Spark does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from sparkonce.errors import ConfigurationError

OBJECT_STORES = ("s3a", "abfs", "abfss", "gs")
"""The schemes of stores with a conditional put, which fails if an object of that name exists."""
HADOOP = ("hdfs", "viewfs")
SCHEMES = ("file", *HADOOP, *OBJECT_STORES)
_OTHERS = {
    "s3": "Give the same bucket as s3a://, which is Hadoop's own connector",
    "s3n": "Give the same bucket as s3a://, which is Hadoop's own connector",
    "wasb": "Give the same container as abfss://",
    "wasbs": "Give the same container as abfss://",
    "dbfs": "On Databricks /dbfs/… is the same folder, by a mount that may have no hard links; the start tries, and "
    "refuses it then",
}
_NEEDED_BY = {"checkpoint": "the decision log", "folder": "a sink whose rows wait there"}
_ELSEWHERE = {
    "checkpoint": "begin a new query, and write all rows again",
    "folder": "not find the rows that wait there",
}


def checked_location(location: str | os.PathLike[str], setting: Literal["checkpoint", "folder"] = "checkpoint") -> str:
    """Returns a checkpoint's location in the form passed to Spark: an absolute path or a URL.

    As in Spark, ``%20`` is not decoded, even in a URL. Hadoop's setting ``fs.defaultFS`` determines the store of a path
    without a scheme. Messages name the argument ``setting``: ``folder`` for a folder in which a sink's rows wait.

    Raises:
        ConfigurationError: If the location is empty or relative, or its store is not known to have conditional puts.
    """
    checkpoint = os.fspath(location) if isinstance(location, str | os.PathLike) else ""
    if not checkpoint or checkpoint.startswith("~"):
        raise ConfigurationError(
            f"{setting}={location!r} "
            + ("would be a folder named '~', which is not expanded." if checkpoint else "names no folder."),
            next_step="Give an absolute path, such as '/data/checkpoints/totals'.",
            setting=setting,
        )
    if checkpoint != checkpoint.strip():
        raise ConfigurationError(
            f"{setting}={checkpoint!r} begins or ends with a space, which makes it a different folder.",
            next_step=f"Give {checkpoint.strip()!r}.",
            setting=setting,
        )
    try:
        url = urlsplit(checkpoint)
    except ValueError as error:
        raise ConfigurationError(
            f"{setting}={checkpoint!r} is not a URL: {error}.", next_step="Give a path or a file: URL."
        ) from None
    if url.scheme and url.scheme not in SCHEMES:
        raise ConfigurationError(
            f"{setting}={checkpoint!r}: {url.scheme}: is not known to be able to put a file only if none has its "
            f"name, and {_NEEDED_BY[setting]} needs that.",
            next_step=_OTHERS.get(url.scheme, f"Give a path, or a URL with one of {', '.join(SCHEMES)}")
            + ". See docs/operations.md#which-disks-carry-a-checkpoint.",
            setting=setting,
        )
    if url.scheme in OBJECT_STORES and not url.netloc:
        raise ConfigurationError(
            f"checkpoint={checkpoint!r} names no bucket: two slashes must come before it. A pathlib.Path has one.",
            next_step=f"Give the URL as a str, such as '{url.scheme}://bucket/checkpoints/totals'.",
            setting="checkpoint",
        )
    if url.scheme in ("", "file"):
        folder = local_folder(checkpoint)
        if not folder.is_absolute():
            raise ConfigurationError(
                f"{setting}={checkpoint!r} is relative to this process's working folder. A driver that is started in "
                f"another folder would {_ELSEWHERE[setting]}.",
                next_step=f"Give the absolute path: {str(folder.absolute())!r}.",
                setting=setting,
            )
    return checkpoint.rstrip("/") or "/"


def about_folder(error: ConfigurationError) -> ConfigurationError:
    """Converts an error about a checkpoint's store into one about a folder in which a sink's rows wait."""
    message = error.message.replace("checkpoint=", "folder=")
    return ConfigurationError(message, next_step=error.next_step, **{**error.details, "setting": "folder"})


def local_folder(location: str) -> Path:
    """Returns the folder on this machine for a path or a ``file:`` URL."""
    scheme, _, rest = location.partition(":")
    path = rest if scheme == "file" else location
    return Path(path if not path.startswith("//") or scheme != "file" else f"/{path[2:].partition('/')[2]}")
