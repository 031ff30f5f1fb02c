"""Finds the sources of a plan, with their options. `sparkonce.spark.explain.queries` reads more of a plan.

Operators are read as JVM objects, expressions from Spark's JSON of the plan. Class names are from Spark 4.0.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

from sparkonce.analysis.facts import KafkaSourceFacts, lower_names
from sparkonce.jvm import class_name, execution_of, items, scala_map
from sparkonce.source import FILES, Source, SourceFacts, registered

logger = logging.getLogger("sparkonce")

STATEFUL = {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "GlobalLimit", "FlatMapGroupsWithState"}
STATEFUL |= {"FlatMapGroupsInPandasWithState", "TransformWithState", "TransformWithStateInPandas"}
STATEFUL |= {"TransformWithStateInPySpark"}
SHUFFLES = {"Aggregate", "Deduplicate", "Join", "RepartitionByExpression"} | STATEFUL
_PLAIN = {"EventTimeWatermark", "Filter", "Project", "SubqueryAlias"}
_FUNCTION = re.compile("UDF|Invoke|CallMethod|NewInstance|ApplyFunction|UserDefined")
"""Expressions that call code of unknown cost."""
_PACKAGES = (
    ("org.apache.iceberg.", "iceberg"),
    ("org.apache.spark.sql.delta.", "delta"),
    ("io.delta.", "delta"),
    ("org.apache.spark.sql.kafka010.", "kafka"),
)
_LOCATIONS = ("subscribe", "subscribepattern", "assign", "path", "streams", "stream", "queue")
"""The options that name what a source reads."""

_FILES = ("org.apache.spark.sql.execution.datasources.", "org.apache.spark.sql.avro.", "org.apache.spark.sql.v2.avro.")
LITERAL_ROWS = {"LocalRelation", "LogicalRDD", "OneRowRelation", "Range"}


def reads_plainly(plan: Any) -> bool:
    """Returns True if a query only selects and filters rows from Kafka, with Spark's own functions.

    Such rows cost a task little. The rows of other plans, with user functions, state or joins, may cost more.
    """
    operators = list(nodes(plan))
    # includes the plans of subqueries, which Spark turns into joins
    leaves = [node for node in operators if is_leaf(node)]
    return (
        {class_name(node) for node in operators if not is_leaf(node)} <= _PLAIN
        and not any(_FUNCTION.search(one["class"]) for one in expressions(json.loads(plan.toJSON())))
        and [leaf.isStreaming() and source_of(leaf).format for leaf in leaves] == ["kafka"]
    )


def source_facts(plan: Any) -> tuple[SourceFacts, ...]:
    """Returns the streaming sources of an analyzed plan, in the plan's order."""
    leaves = [node for node in nodes(plan) if is_leaf(node) and node.isStreaming()]
    return tuple(source_of(leaf) for leaf in leaves)


def running_plan(spark: SparkSession, query: str) -> Any:
    """Returns the analyzed plan of a running query; None if Spark does not expose it."""
    try:
        return execution_of(spark, query).analyzedPlan()
    except Exception as error:  # noqa: BLE001 - Spark's internal classes may change; this check is then skipped
        logger.warning("The query's sources cannot be seen, so their topics' ids are not compared: %s", error)
        return None


def kafka_sources(plan: Any) -> tuple[SourceFacts, ...]:
    """Returns the Kafka sources of an analyzed plan."""
    return tuple(source for source in source_facts(plan) if source.format == "kafka")


def sources_of_client(df: DataFrame) -> tuple[SourceFacts, ...]:
    """Returns the streaming sources of a Spark Connect DataFrame, as its client describes them to the server.

    Sources named in SQL text are not included.
    """
    client: Any = df.sparkSession
    reads = _reads(cast(Any, df)._plan.to_proto(client.client))
    found = [read.data_source for read in reads if read.is_streaming and read.HasField("data_source")]
    return tuple(_named_source(one.format, "", lower_names(dict(one.options))) for one in found)


def _reads(message: Any) -> Iterator[Any]:
    """Yields every ``Read`` in a message of Spark Connect's protocol."""
    if message.DESCRIPTOR.full_name == "spark.connect.Read":
        yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        is_map = field.message_type.GetOptions().map_entry
        for part in value.values() if is_map else [value] if hasattr(value, "ListFields") else value:
            if hasattr(part, "ListFields"):
                yield from _reads(part)


def registered_sources(plan: Any) -> list[tuple[SourceFacts, Source]]:
    """Returns the streaming sources of an analyzed plan that packages have registered, each with its `Source`."""
    return [(one, found) for one in source_facts(plan) if (found := registered(one.format)) is not None]


def source_of(leaf: Any) -> SourceFacts:
    """Returns the source that a streaming leaf of an analyzed plan reads."""
    kind = class_name(leaf)
    if kind == "StreamingRelationV2":
        options = lower_names(dict(leaf.extraOptions().asCaseSensitiveMap()))
        return _named_source(leaf.sourceName(), leaf.table().getClass().getName(), options)
    if kind == "StreamingRelation":
        source = leaf.dataSource()
        return _named_source(source.className(), leaf.sourceName(), lower_names(scala_map(source.options())))
    if kind == "StreamingExecutionRelation":
        return SourceFacts(format=class_name(leaf.source()).lower().removesuffix("stream"))
    return SourceFacts(format=kind.lower())


def _named_source(name: str, made_by: str, options: dict[str, str]) -> SourceFacts:
    form = format_of(made_by) or format_of(name) or name.lower()
    where = next((options[key] for key in _LOCATIONS if key in options), "")
    kind = KafkaSourceFacts if form == "kafka" else SourceFacts
    return kind(format=form, options=options, where=where or (name if name.lower() != form else ""))


def format_of(name: str) -> str:
    """Returns the format of a class or provider; empty for a format without its own rules."""
    known = next((form for package, form in _PACKAGES if name.startswith(package)), "")
    short = name.rpartition(".")[2].lower()
    return known or next((form for form in FILES if name.startswith(_FILES) and short.startswith(form)), "")


def nodes(plan: Any) -> Iterator[Any]:
    """Yields the plan's operators, including those of subqueries."""
    yield plan
    for each in (*items(plan.children()), *items(plan.subqueries())):
        yield from nodes(each)


def expressions(tree: Any) -> Iterator[dict[str, Any]]:
    """Yields every element in the JSON that has a class, with the class's short name."""
    if isinstance(tree, dict):
        if "class" in tree:
            yield {**tree, "class": str(tree["class"]).rpartition(".")[2].rstrip("$")}
        for value in tree.values():
            yield from expressions(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from expressions(value)


def is_leaf(node: Any) -> bool:
    """Returns True if a node produces rows. A CTE reference does not, since the plan also contains its definition."""
    return bool(node.children().isEmpty()) and class_name(node) != "CTERelationRef"
