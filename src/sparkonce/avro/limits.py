"""Limits the memory of one value. Without a limit, five bad bytes make Avro allocate 2 GB, which kills the JVM.

Each string begins with its length, and Avro allocates that much memory before it checks that the bytes exist. The
``OutOfMemoryError`` is fatal to Spark in every mode of ``from_avro``, and recurs at every start. With Avro's own limits
(``org.apache.avro.SystemLimitException``, since 1.12 and 1.11.4), a record with such a string is only undecodable.
"""

from __future__ import annotations

import logging
from typing import Any

from pyspark.sql import SparkSession

logger = logging.getLogger("sparkonce")

PROPERTIES = tuple(f"org.apache.avro.limits.{what}.maxLength" for what in ("string", "bytes", "collectionItems"))
ADVISED = 16_777_216
"""The recommended limit in bytes. A value is never longer than its record, and few topics allow records of 16 MiB."""

DRIVER, EXECUTOR = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"

# Applications that have already logged the warning.
_warned: set[str] = set()


def java_options() -> str:
    """Returns the Java options for `DRIVER` and `EXECUTOR`."""
    return " ".join(f"-D{name}={ADVISED}" for name in PROPERTIES)


def warn_without_limits(session: SparkSession, jvm: Any) -> None:
    """Logs a warning, once per application, that Avro's limits are not set in its JVMs."""
    context = session.sparkContext
    application = str(context.applicationId)
    if application in _warned:
        return
    _warned.add(application)
    missing = [DRIVER] if any(jvm.java.lang.System.getProperty(name) is None for name in PROPERTIES) else []
    conf = context.getConf()
    on_executors = " ".join(conf.get(name, "") or "" for name in (EXECUTOR, "spark.executor.defaultJavaOptions"))
    # With local[…], the driver's JVM is also the executor.
    is_local = context.master == "local" or context.master.startswith("local[")
    if not is_local and any(f"-D{name}=" not in on_executors for name in PROPERTIES):
        missing.append(EXECUTOR)
    if missing:
        settings = " and ".join(f"{name}='{java_options()}'" for name in missing)
        logger.warning(
            "A bad Avro record can end Spark's JVM with an OutOfMemoryError, at every start: Avro's limits are not "
            "set. Next: start Spark with %s (with lengths of your choice), in addition to your own options.",
            settings,
        )
