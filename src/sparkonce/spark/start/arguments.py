"""Checks a query's arguments (session, DataFrame, trigger, options, checkpoint) before any server is contacted."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sparkonce.arguments import mapping, nonempty, one_of, shown
from sparkonce.errors import ConfigurationError
from sparkonce.jvm import execution_of, field, is_connect
from sparkonce.spark.start.checks import CheckpointLocation
from sparkonce.storage.location import checked_location, local_folder

_LOCATION = "checkpointLocation"

_OF_SINKS = frozenset({"topic", "path", "url", "dbtable"})

_MODES = ("append", "update", "complete")

_REFUSED_TRIGGERS = {
    "continuous": "continuous processing has no batches that could be committed",
    "realTime": "real-time mode shows rows before their batch ends, and Spark refuses foreachBatch in it",
}

_TRIGGERS = "'1 second', 'availableNow' or {'once': True}"

OutputMode = Literal["append", "update", "complete"]
"""Spark's output modes."""

Trigger = str | Mapping[str, Any]
"""``availableNow``, an interval such as ``1 second``, or the keywords of ``writeStream.trigger``."""


def check_session(spark: object) -> None:
    """Checks that the session is a classic one."""
    if is_connect(spark):
        raise ConfigurationError(
            f"spark is of Spark Connect ({type(spark).__module__}), but this needs the process of Spark's driver.",
            next_step="Start a classic session: without .remote(…), spark.remote and SPARK_REMOTE, where the driver "
            "runs, for example by spark-submit.",
            setting="spark",
        )
    if not isinstance(spark, SparkSession):
        raise ConfigurationError(
            f"spark={shown(spark)} is not a SparkSession.",
            next_step="Give SparkSession.builder.getOrCreate().",
            setting="spark",
        )


def check_frame(df: object) -> None:
    """Checks that a DataFrame is a streaming one."""
    if not isinstance(df, DataFrame) or not df.isStreaming:
        wrong = "does not stream" if isinstance(df, DataFrame) else "is not a DataFrame"
        raise ConfigurationError(
            f"df={shown(df)} {wrong}.",
            next_step="Give a streaming DataFrame: of read_kafka(…) or spark.readStream.",
            setting="df",
        )


def new_writer(
    df: DataFrame,
    *,
    checkpoint: str,
    output_mode: Any,
    trigger: Mapping[str, Any] | None,
    query_name: object,
    options: object,
) -> DataStreamWriter:
    """Returns the stream writer, complete except for its sink."""
    mode = one_of("output_mode", output_mode.lower() if isinstance(output_mode, str) else output_mode, _MODES)
    writer = df.writeStream.outputMode(mode)
    writer = writer.options(**_options(options, checkpoint)).option(_LOCATION, checkpoint)
    if query_name is not None:
        writer = writer.queryName(nonempty("query_name", query_name, example="a name, or leave it out"))
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer


def check_name(df: object, name: object) -> None:
    """Rejects the name of a query that is already running, before anything is requested or written."""
    if name is None or not isinstance(df, DataFrame):
        return
    if running := next((one for one in df.sparkSession.streams.active if one.name == name), None):
        raise ConfigurationError(
            f"query_name={name!r}: a query of this name runs already in this session, with the id {running.id}.",
            next_step="If it is this one, started before, stop it with its query.stop(), then start it again: it "
            "resumes after its last batch. If it is another one, choose another name.",
            setting="query_name",
        )


def trigger_keywords(trigger: object) -> dict[str, Any]:
    """Returns the keyword argument of ``writeStream.trigger``. There is exactly one."""
    if isinstance(trigger, str) and trigger in {"availableNow", "once"}:
        return {trigger: True}
    if isinstance(trigger, str) and any(letter.isdigit() for letter in trigger):
        return {"processingTime": trigger}
    known = tuple(inspect.signature(DataStreamWriter.trigger).parameters)[1:]
    trigger = mapping("trigger", trigger, example=_TRIGGERS)
    for name in trigger:
        if name not in _REFUSED_TRIGGERS:
            one_of("trigger", name, known)
    named = [name for name, value in trigger.items() if value is not None]
    if len(named) != 1:
        raise ConfigurationError(
            f"trigger={trigger!r} has {len(named) or 'no'} kinds, but a query has one.",
            next_step=f"Give one of {_TRIGGERS}.",
            setting="trigger",
        )
    if why := _REFUSED_TRIGGERS.get(named[0]):
        raise ConfigurationError(
            f"trigger={trigger!r}: {why}.", next_step=f"Give one of {_TRIGGERS}.", setting="trigger"
        )
    return {named[0]: trigger[named[0]]}


def _options(options: object, checkpoint: str) -> dict[str, Any]:
    known = {} if options is None else mapping("options", options, example="{'name': 'value'}, of the stream writer")
    for name, value in known.items():
        if name.lower().startswith("kafka.") or name.lower() in _OF_SINKS:
            raise ConfigurationError(
                f"options[{name!r}]={value!r} is an option of one of Spark's own sinks, and would be ignored.",
                next_step="Leave it out, and give the setting to the sink: for example KafkaSink({…}, topic='…').",
                setting=name,
            )
        if name.lower() == _LOCATION.lower() and not _is_same(checked_location(str(value)), checkpoint):
            raise ConfigurationError(
                f"options[{name!r}]={value!r} is another folder than checkpoint={checkpoint!r}.",
                next_step="Leave the option out: start() gives the query ExactlyOnce's checkpoint.",
                setting=name,
            )
    return {name: value for name, value in known.items() if name.lower() != _LOCATION.lower()}


def _is_same(one: str, other: str) -> bool:
    return one == other or {local_folder(one), local_folder(other)} == {local_folder(one)}


def location_of(spark: SparkSession, query: str) -> CheckpointLocation | None:
    """Returns the location of a running query's checkpoint; None if Spark does not expose it."""
    try:
        execution = execution_of(spark, query)
        root = str(execution.resolvedCheckpointRoot())
        folder = str(local_folder(root)) if root.startswith("file:") else root
        return CheckpointLocation(folder, bool(field(execution, "deleteCheckpointOnStop")))
    except Exception:  # noqa: BLE001 - Spark's internal classes may change; the message is then less specific
        return None


def running_query(df: DataFrame) -> tuple[str, str]:
    """Returns the ids of the run and the query, which Spark sets as local properties of the ``foreachBatch`` thread."""
    context = df.sparkSession.sparkContext
    run, query = context.getLocalProperty("spark.jobGroup.id"), context.getLocalProperty("sql.streaming.queryId")
    if not run or not query:
        raise ConfigurationError(
            "ExactlyOnce was called outside a streaming query.", next_step="Give it to df.writeStream.foreachBatch(…)."
        )
    return run, query
