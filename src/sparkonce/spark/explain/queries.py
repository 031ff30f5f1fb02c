"""Reads a query that is running or ready to run: its engine, its sink, and the parts of its plan that are not stable.

A part is not stable if it may give different rows when the plan runs again; see `sparkonce.spark.plans`.

Class and field names are from Spark 4.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sparkonce.analysis.arguments import sink_facts
from sparkonce.analysis.engine import SKIP_NULLS, WATERMARKS
from sparkonce.analysis.facts import (
    EngineFacts,
    Pipeline,
    PlanFacts,
    PythonFunction,
    SinkFacts,
    lower_names,
)
from sparkonce.analysis.sinks import IGNORE_METADATA
from sparkonce.errors import ConfigurationError
from sparkonce.jvm import class_name, field, items, jvm, scala_map
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.exactly_once import ExactlyOnce
from sparkonce.spark.plans import LITERAL_ROWS, SHUFFLES, STATEFUL, expressions, format_of, is_leaf, nodes, source_facts
from sparkonce.spark.views import refused_rows_of

Stable = bool | Iterable[str]
OurSinks = tuple[TwoPhaseCommitSink, ...]

_SINKS = {
    "ConsoleTable": "console",
    "FileStreamSink": "file",
    "ForeachBatchSink": "foreachbatch",
    "ForeachWriterTable": "foreach",
    "MemorySink": "memory",
    "NoopTable": "noop",
}
_CONF = (
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.files.ignoreCorruptFiles",
    WATERMARKS,
    SKIP_NULLS,
    IGNORE_METADATA,
)
_ASYNC = "asyncprogresstrackingenabled"
_REAL_TIME = "RealTimeTrigger"


def of_query(query: StreamingQuery, stable: Stable = False) -> tuple[Pipeline, OurSinks]:
    """Returns the facts of a running query, and its sinks if they are ours."""
    execution = query._jsq.streamingQuery()
    kind = class_name(execution)
    continuous = kind == "ContinuousExecution"  # it does not keep the writer's options
    options = {} if continuous else lower_names(scala_map(field(execution, "extraOptions")))
    nameless = not continuous and not query.name and "checkpointlocation" not in options
    sinks, ours = _sink_of(execution.sink(), options)
    engine = EngineFacts(
        checkpoint=str(execution.resolvedCheckpointRoot()),
        # With spark.sql.streaming.checkpointLocation, a query without a name gets a new folder at each start.
        temporary=bool(field(execution, "deleteCheckpointOnStop")) or nameless,
        continuous=continuous,
        real_time=class_name(execution.trigger()) == _REAL_TIME,
        interval=_interval(execution.trigger()),
        async_progress=kind.startswith("AsyncProgressTracking"),
        plan=plan_facts(execution.analyzedPlan(), stable),
        conf=_conf(execution.sparkSessionForStream().conf()),
    )
    sources = source_facts(execution.analyzedPlan())
    return Pipeline(query=query.name or str(query.id), sources=sources, engine=engine, sinks=sinks), ours


def of_writer(writer: DataStreamWriter, stable: Stable = False) -> tuple[Pipeline, OurSinks]:
    """Returns the facts of a query that is ready to start, and its sinks if they are ours."""
    jwrite = writer._jwrite
    options = lower_names(scala_map(field(jwrite, "extraOptions")))
    trigger = field(jwrite, "trigger")
    batches = field(jwrite, "foreachBatchWriter")
    sinks: tuple[SinkFacts, ...]
    ours: OurSinks = ()
    if batches is not None:
        sinks, ours = _foreach_batch(batches)
    elif field(jwrite, "foreachWriter") is not None:
        sinks = (SinkFacts(format="foreach", options=options),)
    else:
        sinks = sink_facts(str(field(jwrite, "source")), options)
    engine = replace(
        _engine(writer._df, stable),
        checkpoint=options.get("checkpointlocation") or _default_checkpoint(writer._spark, options),
        continuous=class_name(trigger) == "ContinuousTrigger",
        real_time=class_name(trigger) == _REAL_TIME,
        interval=_interval(trigger),
        async_progress=options.get(_ASYNC, "").lower() == "true",
    )
    engine = replace(engine, temporary=engine.checkpoint is None)
    name = options.get("queryname") or "the query"
    return Pipeline(query=name, sources=_sources(writer._df), engine=engine, sinks=sinks), ours


def of_frame(df: DataFrame, sink: Any, stable: Stable = False) -> tuple[Pipeline, OurSinks]:
    """Returns the facts of a DataFrame and its intended sinks, and the sinks if they are ours."""
    engine = _engine(df, stable)
    if isinstance(sink, ExactlyOnce):
        engine = replace(engine, checkpoint=sink.checkpoint, temporary=False)
    facts, ours = sinks_of_argument(sink)
    return Pipeline(query="the DataFrame", sources=_sources(df), engine=engine, sinks=facts), ours


def _engine(df: DataFrame, stable: Stable) -> EngineFacts:
    plan = plan_facts(df._jdf.queryExecution().analyzed(), stable)
    return EngineFacts(plan=plan, conf=_conf(df.sparkSession._jsparkSession.conf()))


def _sources(df: DataFrame) -> Any:
    if not df.isStreaming:
        raise ConfigurationError(
            "The DataFrame does not stream, so there is no streaming query to explain.",
            next_step="Read it with spark.readStream.",
        )
    return source_facts(df._jdf.queryExecution().analyzed())


def _conf(conf: Any) -> dict[str, str]:
    return {name: str(conf.get(name)) for name in _CONF}


def _interval(trigger: Any) -> timedelta | None:
    if class_name(trigger) != "ProcessingTimeTrigger":
        return None
    return timedelta(milliseconds=int(trigger.intervalMs()))


def _default_checkpoint(spark: SparkSession, options: Mapping[str, str]) -> str | None:
    """Returns Spark's checkpoint location for a query with a name and without its own location."""
    base = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
    name = options.get("queryname")
    return f"{base}/{name}" if base and name else None


def _sink_of(sink: Any, options: Mapping[str, str]) -> tuple[tuple[SinkFacts, ...], OurSinks]:
    kind = class_name(sink)
    if kind == "ForeachBatchSink":
        return _foreach_batch(field(sink, "batchWriter"))
    form = _SINKS.get(kind) or format_of(sink.getClass().getName()) or kind.lower()
    where = options.get("topic") or options.get("path") or ""
    if form == "iceberg":
        where = str(sink.name())
    return (SinkFacts(format=form, name=where, options=options),), ()


def _foreach_batch(writer: Any) -> tuple[tuple[SinkFacts, ...], OurSinks]:
    """Returns the facts of a ``foreachBatch`` function: the sinks of an `ExactlyOnce`, or the user's function."""
    function = _python_function(writer)
    return ((SinkFacts(format="foreachbatch"),), ()) if function is None else sinks_of_argument(function)


def sinks_of_argument(sink: Any) -> tuple[tuple[SinkFacts, ...], OurSinks]:
    """Returns the facts of a ``sink=`` argument or a ``foreachBatch`` function, and the sinks if they are ours.

    Args:
        sink: See `sparkonce.analysis.arguments.sink_facts`; also an `ExactlyOnce`, or a mapping of sinks to views.
    """
    if isinstance(sink, ExactlyOnce):
        facts = zip(sink_facts(sink.sinks), sink.sinks, strict=True)
        return tuple(
            replace(each, checkpoint=sink.checkpoint, refused=refused_rows_of(one, sink.dead_letters))
            for each, one in facts
        ), sink.sinks
    sink = tuple(sink) if isinstance(sink, Mapping) else sink
    several = sink if isinstance(sink, list | tuple) else (sink,)
    mine = tuple(several) if all(isinstance(each, TwoPhaseCommitSink) for each in several) else ()
    return sink_facts(sink), mine


def _python_function(writer: Any) -> Any:
    """Returns the Python object behind the Scala function that PySpark creates from it; None if there is none.

    The Scala function has a field with py4j's proxy, and the proxy has a handler with an id. Under this id, py4j's pool
    in this process stores PySpark's wrapper of the function.
    """
    fields = list(writer.getClass().getDeclaredFields())
    if not fields:
        return None
    fields[0].setAccessible(True)
    proxy, proxies = fields[0].get(writer), jvm().java.lang.reflect.Proxy
    if not proxies.isProxyClass(proxy.getClass()):
        return None
    handler = proxies.getInvocationHandler(proxy)
    wrapper = writer._gateway_client.gateway_property.pool.dict.get(str(field(handler, "id")))
    return getattr(wrapper, "func", None)


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
        # If every column is a key, the dropped rows equal the remaining one.
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
