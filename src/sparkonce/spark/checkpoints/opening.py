"""Finds the store of a checkpoint's location the way Spark does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from sparkonce.errors import ConfigurationError
from sparkonce.jvm import jvm
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.storage.files import CheckpointFiles, prove
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.location import HADOOP, OBJECT_STORES, SCHEMES, local_folder


def open_for(spark: SparkSession, location: str, sinks: Iterable[TwoPhaseCommitSink]) -> CheckpointFiles:
    """Opens a checkpoint, tests its store, and passes the files to the sinks."""

    def opened(location: str) -> CheckpointFiles:
        files = open_checkpoint(spark, location)
        prove(files)
        return files

    files = opened(location)
    for sink in sinks:
        sink.use_folders(opened)
        sink.use_checkpoint(files)
    return files


def open_checkpoint(spark: SparkSession, location: str) -> CheckpointFiles:
    """Returns the files of a checkpoint.

    A classic session's JVM provides the settings and credential files for the store. A Spark Connect session provides
    only its settings. Credentials are then read from this process's environment, which is the Connect server's.

    Raises:
        ConfigurationError: If the session cannot reach the store, or the store cannot hold a decision log.
    """
    if not hasattr(spark, "_jsparkSession"):  # on Spark Connect the JVM is in another process
        from sparkonce.storage.opening import open_location, read_settings

        return open_location(location, read_settings(spark.conf.getAll))
    from py4j.protocol import Py4JJavaError

    settings = hadoop_settings(spark)
    try:
        path = jvm().org.apache.hadoop.fs.Path(location)
        url = str(path.getFileSystem(settings).makeQualified(path).toString())
    except Py4JJavaError as error:
        raise _unreachable(location, error.java_exception.toString()) from None
    scheme = url.partition(":")[0]
    if scheme == "file":
        return LocalFiles(local_folder(url))
    if scheme in HADOOP:
        from sparkonce.spark.checkpoints.hadoop import HadoopFiles, StoreError

        try:
            return HadoopFiles.opened(jvm(), settings, url)
        except StoreError as error:
            raise _unreachable(location, error.strerror) from None
    if scheme in OBJECT_STORES:
        from sparkonce.storage.opening import object_files

        return object_files(url, settings)
    raise ConfigurationError(
        f"checkpoint={location!r} is {url}, and that store cannot carry a decision log.",
        next_step=f"Give a URL with one of {', '.join(SCHEMES)}.",
        setting="checkpoint",
    )


def _unreachable(location: str, reason: str | None) -> ConfigurationError:
    return ConfigurationError(
        f"checkpoint={location!r}: Spark cannot reach that store: {reason}.",
        next_step="Give Spark the store's connector (such as hadoop-aws, in the version of Spark's Hadoop) and its "
        "settings spark.hadoop.fs.…; a query without sparkonce needs them for this checkpoint, too.",
        setting="checkpoint",
    )


def hadoop_settings(spark: SparkSession) -> Any:
    """Returns the session's Hadoop ``Configuration``, with the settings ``spark.hadoop.…``."""
    return spark._jsparkSession.sessionState().newHadoopConf()
