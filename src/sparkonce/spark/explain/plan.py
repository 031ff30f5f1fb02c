"""Finds the parts of a plan that may give different rows when it runs again. See `sparkonce.spark.plans`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from sparkonce.analysis.facts import PlanFacts, PythonFunction
from sparkonce.jvm import class_name, items
from sparkonce.spark.plans import LITERAL_ROWS, SHUFFLES, STATEFUL, expressions, is_leaf, nodes

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
"""Expressions that Spark considers non-deterministic, although a row comes from the same file in every replay."""


def plan_facts(plan: Any, stable: bool | Iterable[str] = False) -> PlanFacts:
    """Returns the parts of an analyzed plan that may give different rows when it runs again.

    Args:
        plan: Spark's ``LogicalPlan``.
        stable: The names of Python functions that the user declares deterministic; True for all.
    """
    operators = list(nodes(plan))
    kinds = [class_name(node) for node in operators]
    found = list(expressions(json.loads(plan.toJSON())))
    classes = [one["class"] for one in found]
    functions = _functions(found, stable)
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
        # If every column is a key, the dropped rows are equal to the remaining one.
        if kind.startswith("Deduplicate") and node.keys().size() < node.child().output().size():
            yield "dropDuplicates"


def _is_stateful(node: Any, kind: str) -> bool:
    if kind == "Join":
        return all(child.isStreaming() for child in items(node.children()))
    return kind in STATEFUL and bool(node.isStreaming())


def _is_static(node: Any) -> bool:
    return is_leaf(node) and not node.isStreaming() and class_name(node) not in LITERAL_ROWS


def _static(leaf: Any) -> str:
    """Returns a name for a table or files that are not streamed."""
    text = str(leaf.simpleString(5))
    return "the static " + text.partition("[")[0].replace("Relation", "").strip()


def _functions(found: Iterable[dict[str, Any]], stable: bool | Iterable[str]) -> tuple[PythonFunction, ...]:
    declared = {
        one["name"]: bool(one["udfDeterministic"]) for one in found if "udfDeterministic" in one and "evalType" in one
    }
    trusted = set(declared) if stable is True else set(stable or ())
    return tuple(
        PythonFunction(name=name, deterministic=True if name in trusted else (None if deterministic else False))
        for name, deterministic in declared.items()
    )
