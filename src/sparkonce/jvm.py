"""Reads, creates and caches JVM objects, checks that a session has a jar, and inspects Spark's types.

A call to the JVM takes a third of a millisecond, and a batch makes many calls, so a run caches everything that it can
reuse.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from sparkonce.errors import ConfigurationError
from sparkonce.packages import missing_module


def jvm() -> Any:
    """Returns the JVM of this process's Spark session; raises ConfigurationError if there is none."""
    from pyspark import SparkContext  # A Spark Connect client does not have SparkContext.

    context = SparkContext._active_spark_context
    if context is None or context._jvm is None:
        raise ConfigurationError("There is no Spark session.", next_step="Explain the query while its session lives.")
    return context._jvm


def execution_of(spark: SparkSession, query: str) -> Any:
    """Returns Spark's ``StreamExecution`` of a running query, given the query's id; None if there is none."""
    return spark._jsparkSession.sharedState().activeStreamingQueries().get(jvm().java.util.UUID.fromString(query))


def is_connect(thing: object) -> bool:
    """Returns True if a session, DataFrame or query belongs to Spark Connect, which has no JVM in this process."""
    return type(thing).__module__.startswith("pyspark.sql.connect")


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Returns a DataFrame without rows, and leaves the active session unchanged.

    PySpark's ``createDataFrame`` makes its session the active one of the whole process. A query's batches run in a copy
    of the session that started the query, so code that looks up the active session would then find that copy.
    """
    if is_connect(spark):
        return spark.createDataFrame([], schema)
    kind = jvm().org.apache.spark.sql.types.DataType.fromJson(schema.json())
    return DataFrame(spark._jsparkSession.createDataFrame(jvm().java.util.ArrayList(), kind), spark)


def class_name(thing: Any) -> str:
    """Returns the short name of an object's class, without the ``$`` of Scala objects."""
    return str(thing.getClass().getName()).rpartition(".")[2].rstrip("$").rpartition("$")[2]


def items(sequence: Any) -> Iterator[Any]:
    """Yields the elements of a Scala ``Seq``."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def scala_map(found: Any) -> dict[str, str]:
    """Returns a Scala map of strings as a dict."""
    return dict(jvm().scala.jdk.javaapi.CollectionConverters.asJava(found))


def field(thing: Any, name: str) -> Any:
    """Returns the value of a private field, including superclasses' fields; raises AttributeError if there is none."""
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
    """Caches objects that are created once per run of a query. Another run may have a different JVM."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Returns the cached object for this key, or creates it. Two threads may both create the same object."""
        made = self._made.get(key, _MISSING)
        if made is _MISSING:
            if len(self._made) >= _MOST:
                self._made.clear()
            self._made[key] = made = make()
        return cast(_Made, made)


def require_class(session: SparkSession, module: str, name: str) -> None:
    """Checks that the session has a module, by one of its classes.

    The module is the name of a Spark module, or the Maven coordinate of another jar.

    Raises:
        ConfigurationError: If the module is missing. The message says how to get it.
    """
    from py4j.java_gateway import JavaClass

    found = session._jvm
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, JavaClass):  # py4j treats any name that is not a class as a package.
        raise missing(session, module)


def missing(session: SparkSession, module: str) -> ConfigurationError:
    """Returns the error for a session without the module."""
    asked, jars = (str(session.conf.get(name, "")) for name in ("spark.jars.packages", "spark.jars"))
    # spark-submit passes Python the port of the JVM that it started.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    return missing_module(module, session.version, asked=asked, jars=jars, submitted=submitted)


def repeated_name(names: Sequence[str], *, is_case_sensitive: bool) -> str | None:
    """Returns the first repeated name; None if there is none."""
    folded = [name if is_case_sensitive else name.lower() for name in names]
    return next((name for at, name in enumerate(names) if folded[at] in folded[:at]), None)


def types_inside(kind: DataType) -> list[DataType]:
    """Returns the element types of an array, map or struct; none for other types."""
    if isinstance(kind, ArrayType):
        return [kind.elementType]
    if isinstance(kind, MapType):
        return [kind.keyType, kind.valueType]
    return [one.dataType for one in kind] if isinstance(kind, StructType) else []
