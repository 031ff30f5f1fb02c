"""The Maven coordinates of Spark's own modules that PySpark does not ship."""

from __future__ import annotations

import importlib.metadata
import re

from sparkonce.errors import ConfigurationError

KAFKA_MODULE = "spark-sql-kafka-0-10"
AVRO_MODULE = "spark-avro"

SCALA = "2.13"  # the only one of Spark 4
_RELEASED = re.compile(r"(\d+\.\d+\.\d+)(?:$|[-+])")


def spark_packages(version: str | None = None, *, avro: bool = True) -> str:
    """What to give ``spark.jars.packages`` so that Spark reads Kafka and decodes Avro.

    Both must have exactly Spark's own version (Spark's "Structured Streaming + Kafka Integration Guide", Deploying).

    Args:
        version: Spark's version, such as ``spark.version`` of a session; by default that of the installed PySpark.
        avro: Whether to name the Avro module too.

    Returns:
        Coordinates with a comma between them.

    Raises:
        ConfigurationError: if the version is not one of a release, for which there are no published modules.
    """
    asked = importlib.metadata.version("pyspark") if version is None else version
    found = _RELEASED.match(asked)
    if found is None:
        raise ConfigurationError(
            f"version={asked!r} is no release of Spark, and the Kafka connector is published for releases only.",
            next_step="build the connector together with that Spark and name its jar in spark.jars, or name a release.",
        )
    modules = [KAFKA_MODULE, *([AVRO_MODULE] if avro else [])]
    return ",".join(f"org.apache.spark:{module}_{SCALA}:{found[1]}" for module in modules)


def missing_module(module: str, version: str) -> ConfigurationError:
    """Says how to get a module that a session does not have.

    Args:
        module: `KAFKA_MODULE` or `AVRO_MODULE`.
        version: Of the running Spark.
    """
    found = _RELEASED.match(version)
    coordinate = f"org.apache.spark:{module}_{SCALA}:{found[1] if found else version}"
    return ConfigurationError(
        f"this Spark session (version {version}) does not have {module}, whose jar PySpark does not ship.",
        next_step=f"start the session with spark.jars.packages={coordinate} (sparkonce.spark_packages() gives it), or "
        "with the jars in spark.jars; a session that is already running cannot be given jars.",
        setting="spark.jars.packages",
    )
