"""The stores of logs and checkpoints, as a process of Spark's driver finds them that has no JVM to ask."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from sparkonce.errors import ConfigurationError
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.location import checked_location, local_folder
from sparkonce.storage.opening import open_location

Settings = Mapping[str, str]
"""Hadoop's settings of stores, by name."""

_OF_STORES = ("dfs.", "fs.", "google.cloud.", "hadoop.security.", "ipc.")
_URL = re.compile(r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):)?(?://(?P<authority>[^/]*))?(?P<path>/?.*)", re.DOTALL)


def session_settings(spark: Any) -> Settings | None:
    """Reads a session's settings of stores; None on Spark Connect, where the server has them."""
    if not hasattr(spark, "_jsparkSession"):
        return None
    from sparkonce.spark.checkpoints.opening import hadoop_settings
    from sparkonce.spark.jvm import jvm

    everything = hadoop_settings(spark).getPropsWithPrefix("")
    told = jvm().com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(everything)
    return {name: value for name, value in json.loads(told).items() if name.startswith(_OF_STORES)}


def open_files(setting: str, location: str, settings: Settings | None) -> CheckpointFiles:
    """Returns the files of a folder.

    Args:
        setting: The option that names it.
        location: As it was given.
        settings: Of the session; None to reach stores by the environment of this process.

    Raises:
        ConfigurationError: if it is relative, or its store cannot carry a log, or cannot be reached from here.
    """
    url = checked_location(_qualified(checked_location(location), (settings or {}).get("fs.defaultFS", "")))
    scheme, colon, _ = url.partition(":")
    if not colon or scheme == "file":
        return LocalFiles(local_folder(url))
    try:
        return open_location(url, settings)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{setting}={location!r}: {error.message}",
            next_step="Use credentials that docs/checkpoints.md lists, or ExactlyOnce, for which Spark's own connector "
            "reaches the store.",
            setting=setting,
        ) from None


def _qualified(location: str, default: str) -> str:
    """Returns a location as Hadoop qualifies it: with the default store's scheme and host where it names none."""
    given, store = (cast(re.Match[str], _URL.fullmatch(one)) for one in (location, default))
    scheme, authority = given["scheme"], given["authority"]
    if not scheme and store["scheme"] not in (None, "file"):
        scheme, authority = store["scheme"], store["authority"]
    elif scheme == store["scheme"] and scheme != "file":
        authority = authority or store["authority"]
    return location if scheme in (None, "file") else f"{scheme}://{authority or ''}{given['path']}"
