"""The Maven coordinates of Spark's modules and table formats that PySpark does not ship."""

from __future__ import annotations

import importlib.metadata
import re

from sparkonce.errors import ConfigurationError

KAFKA_MODULE = "spark-sql-kafka-0-10"
AVRO_MODULE = "spark-avro"
DELTA_MODULE = "delta-spark"
ICEBERG_MODULE = "iceberg-spark-runtime"
GROUP = "sparkonce.packages"
"""The entry point group of packages that need a jar. An entry maps a name for `spark_packages` to a coordinate."""

SCALA = "2.13"  # Spark 4 has no other version of Scala.
_RELEASED = re.compile(r"(\d+\.\d+\.\d+)(?:$|[-+])")

_TABLES = {
    DELTA_MODULE: {
        "4.0": f"io.delta:delta-spark_{SCALA}:4.0.0",
        "4.1": f"io.delta:delta-spark_4.1_{SCALA}:4.4.0",
    },
    ICEBERG_MODULE: {
        "4.0": f"org.apache.iceberg:iceberg-spark-runtime-4.0_{SCALA}:1.10.0",
        "4.1": f"org.apache.iceberg:iceberg-spark-runtime-4.1_{SCALA}:1.12.0",
    },
}
"""The coordinates that the sinks are tested with, by Spark's version. Delta and Iceberg have their own versions."""


def spark_packages(
    version: str | None = None,
    *,
    avro: bool = True,
    delta: bool = False,
    iceberg: bool = False,
    **others: bool,
) -> str:
    """Returns the value of ``spark.jars.packages`` for Kafka and Avro, and for Delta, Iceberg and others.

    Spark's own modules must have exactly the version of Spark ("Deploying" in Spark's "Structured Streaming + Kafka
    Integration Guide").

    Args:
        version: Spark's version, such as ``spark.version`` of a session; by default the installed PySpark's version.
        avro: True adds the Avro module.
        delta: True adds Delta Lake, in the version that `DeltaSink` is tested with.
        iceberg: True adds Iceberg, in the version that `IcebergSink` is tested with.
        others: True adds a jar named in the entry point group ``sparkonce.packages``, such as ``pravega`` for
            `PravegaSink` and `read_pravega`.

    Returns:
        The coordinates, separated by commas.

    Raises:
        ConfigurationError: If the version is not a release with published modules, if the version of Delta or Iceberg
            for it is unknown, or if no package has such a name.
    """
    asked = importlib.metadata.version("pyspark") if version is None else str(version)
    found = _RELEASED.match(asked)
    if found is None:
        raise ConfigurationError(
            f"version={asked!r} is not a release of Spark, and the Kafka connector is published for releases only.",
            next_step="Build the connector together with that Spark and name its jar in spark.jars, or name a release.",
        )
    tables = {DELTA_MODULE: delta, ICEBERG_MODULE: iceberg}
    for module in (one for one, wanted in tables.items() if wanted):
        if found[1].rpartition(".")[0] not in _TABLES[module]:
            raise ConfigurationError(
                f"Which {module} fits Spark {found[1]} is not known here, only for {', '.join(_TABLES[module])}.",
                next_step="Look up the version that its project names for that Spark, and add its coordinate.",
            )
    wanted = {KAFKA_MODULE: True, AVRO_MODULE: avro, **tables}
    wanted |= {_registered(name): True for name, one in others.items() if one}
    return ",".join(_coordinate(module, found[1]) for module, one in wanted.items() if one)


def _registered(name: str) -> str:
    entries = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    if name not in entries:
        known = ", ".join(["avro", "delta", "iceberg", *sorted(entries)])
        raise ConfigurationError(
            f"{name}= is not a known package of jars; known are {known}.",
            next_step="Correct the name, or install the Python package that brings it.",
            setting=name,
        )
    return str(entries[name].load())


def _coordinate(module: str, version: str) -> str:
    """Returns a module's coordinate, with a placeholder for an unknown version."""
    if ":" in module:
        return module
    short = ".".join(version.split(".")[:2])
    if module == DELTA_MODULE:
        return _TABLES[module].get(short, f"io.delta:delta-spark_{SCALA}:<the version for Spark {short}>")
    if module == ICEBERG_MODULE:
        runtime = f"org.apache.iceberg:iceberg-spark-runtime-{short}_{SCALA}"
        return _TABLES[module].get(short, f"{runtime}:<the version for Spark {short}>")
    return f"org.apache.spark:{module}_{SCALA}:{version}"


def missing_module(
    module: str, version: str, *, asked: str = "", jars: str = "", submitted: bool = False
) -> ConfigurationError:
    """Returns the error for a session that lacks a module, with the remedy for each way of starting Spark.

    The module is a name or a coordinate, and the version is that of the running Spark. ``asked`` and ``jars`` are the
    session's ``spark.jars.packages`` and ``spark.jars``, where Spark lists what it has fetched. ``submitted`` is True
    if spark-submit started this process.
    """
    found = _RELEASED.match(version)
    coordinate = _coordinate(module, found[1] if found else version)
    packages = ",".join(dict.fromkeys([*filter(None, asked.split(",")), coordinate]))
    name, why = module.split(":")[1] if ":" in module else module, ""
    if name in asked and name not in jars:
        first = (
            "spark-submit starts it before the script runs"
            if submitted
            else "by a session before this one, of this script, the notebook or the shell"
        )
        why = (
            f"spark.jars.packages={asked} is set and had no effect: packages are fetched when Spark's JVM starts, and "
            f"it was running already ({first}). "
        )
    by_submit = "spark-submit, pyspark"
    setting = f'"spark.jars.packages", "{packages}"'
    ways = {
        "python job.py": f"SparkSession.builder.config({setting}).getOrCreate(), before anything else uses Spark",
        by_submit: f"spark-submit --packages {packages} job.py",
        "notebook": "restart the kernel, and run the line of `python job.py` first",
        "notebook that brings `spark`": (
            f"PYSPARK_SUBMIT_ARGS='--packages {packages} pyspark-shell' in the kernel's environment, then restart "
            'it; with Livy (sparkmagic) a first cell: %%configure -f {"conf": '
            f"{{{setting.replace(', ', ': ')}}}}}"
        ),
        "Spark Connect": f"start-connect-server.sh --packages {packages}, on the server",
        "spark-defaults.conf": f"spark.jars.packages {packages}",
    }
    told = sorted(ways.items(), key=lambda one: submitted and one[0] != by_submit)
    return ConfigurationError(
        f"{why}This Spark session (version {version}) does not have {name}, whose jar PySpark does not ship.",
        next_step="Name the package where Spark is started, and start it again:\n"
        + "\n".join(f"  {way}: {line}" for way, line in told)
        + "\n  without a network: the jars, with all that they need, in spark.jars instead",
        setting="spark.jars.packages",
    )
