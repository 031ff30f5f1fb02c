"""Reads facts about a query from its checkpoint folder, without Spark.

Among Spark's files (4.0), ``metadata`` contains the query's id. ``offsets/N`` contains a version line, a line of
settings, and one line of offsets per source; the shape of the offsets reveals the kind of source. ``sources/I``
contains data of source I. ``state`` exists if the query has state. The decision log in ``sparkonce`` names our sinks.
The folder does not contain options, the plan, or other sinks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sparkonce.analysis.arguments import sink_facts
from sparkonce.analysis.explanation import Explanation, judge
from sparkonce.analysis.facts import EngineFacts, KafkaSourceFacts, Pipeline, SinkFacts
from sparkonce.analysis.sinks import OURS, parse_reader
from sparkonce.decision_log import FOLDER, DecisionLog
from sparkonce.driver.start import read_log
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.view import LogView
from sparkonce.source import SourceFacts, all_registered
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.spark_checkpoint import SparkCheckpoint


def checkpoint_facts(files: CheckpointFiles) -> Pipeline:
    """Returns what the folder reveals about a checkpoint's query.

    Raises:
        ConfigurationError: If the folder is not a checkpoint, or no batch was ever started on it.
        LogError: If its decision log cannot be read.
    """
    checkpoint = SparkCheckpoint(files)
    if not checkpoint.exists():
        raise ConfigurationError(
            f"{files.location!r} is not a checkpoint: it has no file `metadata`.",
            next_step="Give the folder of the option checkpointLocation.",
        )
    newest = checkpoint.begun()
    if newest < 0:
        raise ConfigurationError(
            f"{files.location!r} has no batch yet, so it does not say what the query reads.",
            next_step="Call sparkonce.explain in the query's program, or wait until its first batch has begun.",
        )
    offsets = checkpoint.source_lines(newest)
    if not offsets:
        raise ConfigurationError(
            f"'{files.location}/offsets/{newest}' is empty or cut off, so it does not say what the query reads.",
            next_step="Call sparkonce.explain in the query's program; Spark itself will not start without that file.",
        )
    return Pipeline(
        query=f"the query of {files.location}",
        sources=tuple(_source(files, number, line) for number, line in enumerate(offsets)),
        engine=EngineFacts(checkpoint=files.location, temporary=False, plan=None),
        sinks=_sinks(files) or (SinkFacts(format=""),),
    )


def explain_checkpoint(
    files: CheckpointFiles,
    *,
    sink: str | None = None,
    reader: str | Mapping[str, Any] | None = None,
    downtime: timedelta | None = None,
    ask: Mapping[str, Any] | None = None,
) -> Explanation:
    """Explains the query of a checkpoint folder.

    Args:
        files: The query's checkpoint.
        sink: The Spark format that the query writes, if the checkpoint does not show it.
        reader: See `sparkonce.analysis.sinks.parse_reader`.
        downtime: The longest downtime of the query.
        ask: The settings for querying the brokers of its topics, under librdkafka's names; None not to query them.
    """
    found = checkpoint_facts(files)
    sources = found.sources
    if ask is not None:
        from sparkonce.analysis.servers import ask_about_source  # imports kafka-python

        sources = tuple(ask_about_source(source, ask) for source in sources)
    sinks = sink_facts(sink) if sink is not None else found.sinks
    return judge(replace(found, sources=sources, sinks=sinks, reader=parse_reader(reader), downtime=downtime))


def _source(files: CheckpointFiles, number: int, line: str) -> SourceFacts:
    try:
        offset = json.loads(line)
    except ValueError:
        offset = None
    source_files = files.inside(f"sources/{number}")
    if isinstance(offset, dict) and offset:
        return _by_shape(offset, source_files)
    if isinstance(offset, int) and _first_line_is_a_number(source_files):
        return SourceFacts(format="rate", options=None)
    return SourceFacts(format="", options=None, where=f"source {number}, its offset is {line[:40]}")


def _by_shape(offset: dict[str, Any], source_files: CheckpointFiles) -> SourceFacts:
    keys = set(offset)
    if all(isinstance(each, dict) and all(key.isdigit() for key in each) for each in offset.values()):
        return KafkaSourceFacts(options=None, where=", ".join(offset), names=tuple(offset), by_shape=True)
    if keys == {"logOffset"}:
        return SourceFacts(format="file", options=None, where=_folder_read(source_files))
    if "reservoirId" in keys:
        return SourceFacts(format="delta", options=None, where=f"table id {offset['reservoirId']}")
    if "snapshot_id" in keys:
        return SourceFacts(format="iceberg", options=None)
    if keys == {"offset", "timestamp"}:
        return SourceFacts(format="rate-micro-batch", options=None)
    for form, source in all_registered():
        if (where := source.describe_offset(offset)) is not None:
            return SourceFacts(format=form, options=None, where=where)
    return SourceFacts(format="", options=None, where=f"its offset holds {', '.join(sorted(keys))}")


def _folder_read(source_files: CheckpointFiles) -> str:
    """Returns the folder of the first file in the file source's log."""
    for name in sorted(name for name in source_files.names("") if name[0].isdigit()):
        found = re.search(r'"path":"([^"]+)/[^"/]*"', (source_files.read(name) or b"").decode(errors="replace"))
        if found:
            return found[1]
    return ""


def _first_line_is_a_number(source_files: CheckpointFiles) -> bool:
    """Returns True for the file of a rate source, which contains its first start time after a version line."""
    try:
        lines = (source_files.read("0") or b"").removeprefix(b"\0").decode(errors="replace").split()
    except OSError:
        return False
    return bool(lines) and lines[-1].isdigit()


def _sinks(files: CheckpointFiles) -> tuple[SinkFacts, ...]:
    if not files.names(f"{FOLDER}/records") and not files.names(f"{FOLDER}/floors"):
        return ()
    view = read_log(DecisionLog(files))
    if view.newest_run is None:
        return ()
    return tuple(_sink(name, dict(known), view) for name, known in view.newest_run.sinks)


def _sink(name: str, known: dict[str, str], view: LogView) -> SinkFacts:
    """Returns the facts about a sink in the newest run. In older runs, it may have had a different guarantee."""
    timeout_ms = known.get("transaction_timeout_ms")
    own = [decision for decision in view.decisions if view.newest_run and decision.token == view.newest_run.token]
    handles = [handle for decision in own for handle in decision.handles if handle.sink == name]
    kafka = "cluster_id" in known
    committed = timeout_ms is not None or (not kafka and any(handle.transaction for handle in handles))
    return SinkFacts(
        format=OURS,
        name=name,
        guarantee=Guarantee.EXACTLY_ONCE if committed else None,
        kafka=kafka,
        transaction_timeout=None if timeout_ms is None else timedelta(milliseconds=int(timeout_ms)),
    )
