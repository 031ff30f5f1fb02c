"""Reads, makes and caches objects of the JVM, and checks that a session has a jar.

A call to the JVM takes a third of a millisecond, and a batch makes many. So a run caches what it can use again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sparkonce.errors import ConfigurationError
from sparkonce.sources.packages import missing_module


def jvm() -> Any:
    """Returns the JVM of this process's Spark session.

    Raises:
        ConfigurationError: if there is none.
    """
    from pyspark import SparkContext  # not in a client of Spark Connect

    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        raise ConfigurationError("There is no Spark session.", next_step="Explain the query while its session lives.")
    return context._jvm


def execution_of(spark: SparkSession, query: str) -> Any:
    """Returns Spark's ``StreamExecution`` of a running query, by the query's id; None if there is none."""
    return spark._jsparkSession.sharedState().activeStreamingQueries().get(jvm().java.util.UUID.fromString(query))


def is_connect(thing: object) -> bool:
    """Returns True if a session, DataFrame or query is one of Spark Connect, which has no JVM in this process."""
    return type(thing).__module__.startswith("pyspark.sql.connect")


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Returns a DataFrame without rows, and leaves the active session as it is.

    PySpark's ``createDataFrame`` would make this session the active one of the whole process. A query's batches have
    a copy of the session that started it, so everything that asks for the active session would find that copy.
    """
    if is_connect(spark):
        return spark.createDataFrame([], schema)
    kind = jvm().org.apache.spark.sql.types.DataType.fromJson(schema.json())
    return DataFrame(spark._jsparkSession.createDataFrame(jvm().java.util.ArrayList(), kind), spark)


def class_name(thing: Any) -> str:
    """Returns the short name of its class, without the ``$`` of Scala's objects."""
    return str(thing.getClass().getName()).rpartition(".")[2].rstrip("$").rpartition("$")[2]


def items(sequence: Any) -> Iterator[Any]:
    """Yields the elements of a Scala ``Seq``."""
    for place in range(sequence.size()):
        yield sequence.apply(place)


def scala_map(found: Any) -> dict[str, str]:
    """Returns a Scala map of texts as a dict."""
    return dict(jvm().scala.jdk.javaapi.CollectionConverters.asJava(found))


def field(thing: Any, name: str) -> Any:
    """Returns the value of a private field, also of a superclass.

    Raises:
        AttributeError: if there is no such field; Spark may have renamed it.
    """
    kind = thing.getClass()
    while kind is not None:
        for each in kind.getDeclaredFields():
            if each.getName() == name or each.getName().endswith(f"$${name}"):
                each.setAccessible(True)
                return each.get(thing)
        kind = kind.getSuperclass()
    raise AttributeError(f"{thing.getClass().getName()} has no field {name}")


def quoted(name: str) -> str:
    """Returns a name quoted for Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


_Made = TypeVar("_Made")

_MOST = 16

_MISSING = object()


class JvmCache:
    """Objects that are made once in a run of a query, by what they were made of. Another run may have another JVM."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Returns what was made for this key, or makes it. Threads may call it; two may both make the same."""
        made = self._made.get(key, _MISSING)
        if made is _MISSING:
            if len(self._made) >= _MOST:
                self._made.clear()
            self._made[key] = made = make()
        return cast(_Made, made)


def require_class(session: SparkSession, module: str, name: str) -> None:
    """Checks that the session has a module, by one of its classes.

    Args:
        session: The session.
        module: The name of a module of Spark's, or the coordinate of another jar.
        name: The class.

    Raises:
        ConfigurationError: if not; it says how to get the module.
    """
    from py4j.java_gateway import JavaClass

    found = session._jvm
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, JavaClass):  # to py4j any other name is a package
        raise missing(session, module)


def missing(session: SparkSession, module: str) -> ConfigurationError:
    """Returns the error for a session without the module."""
    asked, jars = (str(session.conf.get(name, "")) for name in ("spark.jars.packages", "spark.jars"))
    # Spark-submit gives Python the port of the JVM that it has started.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    return missing_module(module, session.version, asked=asked, jars=jars, submitted=submitted)
