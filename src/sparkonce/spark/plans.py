"""Reads a plan: its sources with their options, and the parts that may give other rows when it runs again.

Operators are read as objects of the JVM, expressions from the JSON that Spark writes of the plan. Class names are those
of Spark 4.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.serializers import CloudPickleSerializer

from sparkonce.analysis.facts import PlanFacts, PythonFunction, SourceFacts
from sparkonce.analysis.functions import suspects
from sparkonce.analysis.given import lower_names
from sparkonce.analysis.sources import FILES
from sparkonce.spark.jvm import class_name, items, scala_map

_RANDOM = {
    "CallMethodViaReflection": "reflect",
    "RandStr": "randstr",
    "Rand": "rand",
    "Randn": "randn",
    "Sample": "sample",
    "Shuffle": "shuffle",
    "Uniform": "uniform",
    "Uuid": "uuid",
}
_LAYOUT = {"MonotonicallyIncreasingID": "monotonically_increasing_id", "SparkPartitionID": "spark_partition_id"}
_ORDER = {
    "AnyValue": "any_value",
    "CollectList": "collect_list",
    "First": "first",
    "Last": "last",
    "ListAgg": "listagg",
}
_CLOCK = {"Now": "now", "CurrentTime": "current_time"}
_BATCH_CLOCK = {
    "CurrentBatchTimestamp": "current_timestamp",
    "CurrentDate": "current_date",
    "CurrentTimestamp": "current_timestamp",
    "LocalTimestamp": "localtimestamp",
}
_HARMLESS = {"InputFileName", "InputFileBlockStart", "InputFileBlockLength"}
"""Expressions that Spark calls not deterministic, although a row comes from the same file in every replay."""

_STATEFUL = {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "GlobalLimit", "FlatMapGroupsWithState"}
_STATEFUL |= {"FlatMapGroupsInPandasWithState", "TransformWithState", "TransformWithStateInPandas"}
_STATEFUL |= {"TransformWithStateInPySpark"}
SHUFFLES = {"Aggregate", "Deduplicate", "Join", "RepartitionByExpression"} | _STATEFUL
_PLAIN = {"EventTimeWatermark", "Filter", "Project", "SubqueryAlias"}
_FUNCTION = re.compile("UDF|Invoke|CallMethod|NewInstance|ApplyFunction|UserDefined")
"""Expressions that call what may take any time."""
_PACKAGES = (
    ("org.apache.iceberg.", "iceberg"),
    ("org.apache.spark.sql.delta.", "delta"),
    ("io.delta.", "delta"),
    ("org.apache.spark.sql.kafka010.", "kafka"),
    ("sparkonce.pravega.", "pravega"),
)
_PLACES = ("subscribe", "subscribepattern", "assign", "path", "streams", "stream", "queue")
"""The options that name what a source reads."""

_FILES = ("org.apache.spark.sql.execution.datasources.", "org.apache.spark.sql.avro.", "org.apache.spark.sql.v2.avro.")
MADE_IN_PLACE = {"LocalRelation", "LogicalRDD", "OneRowRelation", "Range"}


def plan_facts(plan: Any, stable: bool | Iterable[str] = False) -> PlanFacts:
    """Returns the parts of an analyzed plan that may give other rows when it runs again.

    Args:
        plan: Spark's ``LogicalPlan``.
        stable: Python functions that the user calls deterministic, by name; True for all.
    """
    operators = list(nodes(plan))
    kinds = [class_name(node) for node in operators]
    found = list(_expressions(json.loads(plan.toJSON())))
    classes = [one["class"] for one in found]
    functions = _functions(found, operators, stable)
    random = _named(classes, _RANDOM)
    layout, clock = _named(classes, _LAYOUT), _named(classes, _CLOCK)
    undeclared = any(function.deterministic is False for function in functions)
    known = random or layout or undeclared or _HARMLESS & set(classes)
    return PlanFacts(
        random=(*random, *_unstable_scala(found)),
        layout=layout,
        order=(*_named(classes, _ORDER), *_order(operators)),
        clock=clock,
        batch_clock=_named(classes, _BATCH_CLOCK),
        static=tuple(_static(node) for node in operators if _is_static(node)),
        functions=functions,
        unnamed=not known and not _unstable_scala(found) and not plan.deterministic(),
        shuffles=bool(SHUFFLES & set(kinds)),
        merges=any(kind == "Repartition" and not node.shuffle() for node, kind in zip(operators, kinds, strict=True)),
        stateful=tuple(
            dict.fromkeys(kind for node, kind in zip(operators, kinds, strict=True) if _is_stateful(node, kind))
        ),
        watermarks=kinds.count("EventTimeWatermark"),
    )


def reads_plainly(plan: Any) -> bool:
    """Tells if a query's rows come from Kafka as they are, but for columns and filters of Spark's own functions.

    Such rows cost one task little. Those of other plans may cost it much: functions of the user, state, joins.

    Args:
        plan: The query's analyzed plan.
    """
    operators = list(nodes(plan))
    leaves = [node for node in operators if is_leaf(node)]  # those of subqueries, too, which Spark makes joins of
    return (
        {class_name(node) for node in operators if not is_leaf(node)} <= _PLAIN
        and not any(_FUNCTION.search(one["class"]) for one in _expressions(json.loads(plan.toJSON())))
        and [leaf.isStreaming() and source_of(leaf).format for leaf in leaves] == ["kafka"]
    )


def source_facts(plan: Any) -> tuple[SourceFacts, ...]:
    """Returns the streaming sources of an analyzed plan, in its order."""
    leaves = [node for node in nodes(plan) if is_leaf(node) and node.isStreaming()]
    return tuple(source_of(leaf) for leaf in leaves)


def source_of(leaf: Any) -> SourceFacts:
    """Returns the source of a streaming leaf of an analyzed plan."""
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
    where = next((options[key] for key in _PLACES if key in options), "")
    return SourceFacts(format=form, options=options, where=where or (name if name.lower() != form else ""))


def format_of(name: str) -> str:
    """Returns the format of a class or a provider; empty for a format without rules of its own."""
    known = next((form for package, form in _PACKAGES if name.startswith(package)), "")
    short = name.rpartition(".")[2].lower()
    return known or next((form for form in FILES if name.startswith(_FILES) and short.startswith(form)), "")


def nodes(plan: Any) -> Iterator[Any]:
    """Yields the plan's operators, with those of its subqueries."""
    yield plan
    for each in (*items(plan.children()), *items(plan.subqueries())):
        yield from nodes(each)


def _expressions(tree: Any) -> Iterator[dict[str, Any]]:
    """Yields everything in the JSON that has a class, with the class's short name."""
    if isinstance(tree, dict):
        if "class" in tree:
            yield {**tree, "class": str(tree["class"]).rpartition(".")[2].rstrip("$")}
        for value in tree.values():
            yield from _expressions(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _expressions(value)


def _named(classes: Iterable[str], names: dict[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names[each] for each in classes if each in names))


def _unstable_scala(found: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    unstable = [one for one in found if one["class"] == "ScalaUDF" and one.get("udfDeterministic") is False]
    return ("a Scala function declared so",) if unstable else ()


def _order(nodes: Iterable[Any]) -> Iterator[str]:
    for node in nodes:
        kind = class_name(node)
        if kind == "GlobalLimit":
            yield "limit"
        # If every column is a key, the dropped rows equal the one that stays.
        if kind.startswith("Deduplicate") and node.keys().size() < node.child().output().size():
            yield "dropDuplicates"


def _is_stateful(node: Any, kind: str) -> bool:
    if kind == "Join":
        return all(child.isStreaming() for child in items(node.children()))
    return kind in _STATEFUL and bool(node.isStreaming())


def _is_static(node: Any) -> bool:
    return is_leaf(node) and not node.isStreaming() and class_name(node) not in MADE_IN_PLACE


def is_leaf(node: Any) -> bool:
    """Tells if a node is a source of rows. A reference to a CTE is not: the plan holds its definition, too."""
    return bool(node.children().isEmpty()) and class_name(node) != "CTERelationRef"


def _static(leaf: Any) -> str:
    """Returns a name for a table or files that are not streamed."""
    text = str(leaf.simpleString(5))
    return "the static " + text.partition("[")[0].replace("Relation", "").strip()


def _functions(
    found: Iterable[dict[str, Any]], nodes: Iterable[Any], stable: bool | Iterable[str]
) -> tuple[PythonFunction, ...]:
    declared = {
        one["name"]: bool(one["udfDeterministic"]) for one in found if "udfDeterministic" in one and "evalType" in one
    }
    if not declared:
        return ()
    seen = _suspects(nodes)
    trusted = set(declared) if stable is True else set(stable or ())
    return tuple(
        PythonFunction(
            name=name,
            deterministic=True if name in trusted else (None if deterministic else False),
            suspects=seen.get(name, ()),
        )
        for name, deterministic in declared.items()
    )


def _suspects(nodes: Iterable[Any]) -> dict[str, tuple[str, ...]]:
    """Returns the names of clocks and randomness in each Python function's code, if it can be loaded here."""
    found: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        for expression in items(node.expressions()):
            for each in _tree(expression):
                if class_name(each) == "PythonUDF":
                    found[each.name()] = found.get(each.name(), ()) + suspects(_unpickled(each.func()))
    return found


def _tree(expression: Any) -> Iterator[Any]:
    yield expression
    for child in items(expression.children()):
        yield from _tree(child)


def _unpickled(function: Any) -> Any:
    """Returns the user's own function, which was pickled in this process."""
    try:
        return CloudPickleSerializer().loads(bytes(function.command().unsafeArray()))[0]
    except Exception:  # noqa: BLE001 - a broadcast function, or one that cannot be loaded, is named only
        return None
