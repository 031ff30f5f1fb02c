"""Reaches a checkpoint on HDFS from Python workers, which have no JVM: as the session reaches it, or not at all."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from sparkonce.arguments import missing_package
from sparkonce.errors import ConfigurationError
from sparkonce.spark.checkpoints.calls import called
from sparkonce.storage.hdfs import HdfsFiles

_UNDERSTOOD = ("dfs.", "fs.viewfs.")
_AUTHENTICATION = "hadoop.security.authentication"
_PROVIDER = "dfs.client.failover.proxy.provider"
_PROVIDERS = tuple(
    f"org.apache.hadoop.hdfs.server.namenode.ha.{name}"
    for name in ("ConfiguredFailoverProxyProvider", "RequestHedgingProxyProvider")
)
"""The classes that find the active name node, and differ only in whom they ask first."""


def hdfs_files(jvm: Any, settings: Any, folder: str) -> HdfsFiles:
    """Returns the files of a folder, by a client that works in any process.

    Args:
        jvm: The JVM of the session.
        settings: Hadoop's ``Configuration``, a copy of the session's.
        folder: The folder's URL, as Hadoop qualifies it.

    Raises:
        ConfigurationError: if a setting has no counterpart, or the client is not installed.
    """
    authentication = str(settings.get(_AUTHENTICATION, "simple"))
    if authentication.lower() != "simple":
        raise _refused(folder, _AUTHENTICATION, authentication)
    if find_spec("hdfs_native") is None:
        raise missing_package(
            f"checkpoint={folder!r}, with a sink whose workers write rows there,", "hdfs-native", "hdfs"
        )
    given = _given(jvm, settings)
    name = f"{_PROVIDER}.{urlsplit(folder).netloc}"
    provider = given.get(name, given.get(_PROVIDER, ""))
    if provider and provider not in _PROVIDERS:
        raise _refused(folder, name if name in given else _PROVIDER, provider)
    users = jvm.org.apache.hadoop.security.UserGroupInformation
    return HdfsFiles(folder, given, str(called(lambda: users.getCurrentUser().getShortUserName())))


def _given(jvm: Any, settings: Any) -> dict[str, str]:
    """Returns the settings that the client reads, without Hadoop's own defaults."""
    writer = jvm.java.io.StringWriter()
    called(lambda: jvm.org.apache.hadoop.conf.Configuration.dumpConfiguration(settings, writer))
    return {
        one["key"]: one["value"]
        for one in json.loads(str(writer.toString()))["properties"]
        if one["key"].startswith(_UNDERSTOOD) and not one["resource"].endswith("-default.xml")
    }


def _refused(folder: str, setting: str, value: str) -> ConfigurationError:
    return ConfigurationError(
        f"checkpoint={folder!r} has {setting}={value!r}, which the client of Python workers does not have, and a "
        "sink's workers write rows there.",
        next_step="Give that sink folder=, the path of a mounted disk or the s3a: URL of a folder for its rows.",
        setting=setting,
    )
