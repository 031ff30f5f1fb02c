"""Opens a checkpoint for the command line and for tools, which have no session of Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from sparkonce.checkpoint.credentials import PlainSettings, object_files
from sparkonce.checkpoint.files import CheckpointFiles
from sparkonce.checkpoint.hdfs import HdfsFiles
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.checkpoint.location import HADOOP, checked_location, local_folder
from sparkonce.checkpoint.objects import ObjectAccess, ObjectFiles

_AMAZON = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def open_location(location: str, settings: Mapping[str, str] | None = None) -> CheckpointFiles:
    """Returns the files of a checkpoint, reached by Hadoop's settings, or else by the environment of this process.

    With settings an object store is reached as Spark's connector would: see `sparkonce.checkpoint.credentials`. Without
    any, S3 takes the variables of Amazon's tools (``AWS_ACCESS_KEY_ID``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, …),
    Azure ``AZURE_STORAGE_…``, and Google ``GOOGLE_APPLICATION_CREDENTIALS``. HDFS takes the files in
    ``HADOOP_CONF_DIR``.

    Args:
        location: See `sparkonce.checkpoint.location.checked_location`. A path is one of this machine.
        settings: Hadoop's, without ``spark.hadoop.``; None for the environment's. For HDFS they count before those of
            the files.

    Raises:
        ConfigurationError: if it is no location of a checkpoint, a setting has no counterpart, or a package is missing.
    """
    url = checked_location(location)
    scheme, _, rest = url.partition("://")
    if scheme in HADOOP:
        return HdfsFiles(url, settings)
    if scheme in _OPENED and settings is not None:
        return object_files(url, PlainSettings(settings))
    if scheme in _OPENED:
        authority, _, path = rest.partition("/")
        return ObjectFiles(url, path.strip("/"), _OPENED[scheme](authority))
    return LocalFiles(local_folder(url))


def _s3(bucket: str) -> ObjectAccess:
    options = {"conditional_put": "etag", "virtual_hosted_style_request": False}
    endpoint = next((os.environ[name] for name in _AMAZON if os.environ.get(name)), "")
    if endpoint:
        options["endpoint"] = endpoint
    return ObjectAccess(kind="s3", bucket=bucket, options=options, allow_http=endpoint.startswith("http:"))


def _azure(authority: str) -> ObjectAccess:
    container, _, host = authority.rpartition("@")
    options = {"account_name": host.partition(".")[0], "endpoint": f"https://{host.replace('.dfs.', '.blob.')}"}
    return ObjectAccess(kind="azure", bucket=container, options=options)


def _google(bucket: str) -> ObjectAccess:
    return ObjectAccess(kind="gcs", bucket=bucket)


_OPENED: Mapping[str, Callable[[str], ObjectAccess]] = {"s3a": _s3, "abfs": _azure, "abfss": _azure, "gs": _google}
