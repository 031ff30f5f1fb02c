"""Applies the rules to a query."""

from __future__ import annotations

from sparkonce.analysis.engine import judge_engine
from sparkonce.analysis.facts import Pipeline
from sparkonce.analysis.findings import Part
from sparkonce.analysis.model import Explanation
from sparkonce.analysis.readers import judge_reader
from sparkonce.analysis.sinks import judge_sink
from sparkonce.analysis.sources import judge_source
from sparkonce.errors import ConfigurationError


def judge(pipeline: Pipeline) -> Explanation:
    """Returns the level of each part of the pipeline, with the reasons.

    Raises:
        ConfigurationError: if it has no source or no sink: a part that was not seen cannot be judged.
    """
    if not pipeline.sources or not pipeline.sinks:
        raise ConfigurationError(
            f"{pipeline.query}: no {'sink' if pipeline.sources else 'source'} was found in it.",
            next_step="Give a streaming query with a source and a sink.",
        )
    parts: list[Part] = [judge_source(source, pipeline) for source in pipeline.sources]
    parts.append(judge_engine(pipeline))
    parts += [judge_sink(sink, pipeline) for sink in pipeline.sinks]
    readers = [judge_reader(sink, pipeline) for sink in pipeline.sinks]
    return Explanation(query=pipeline.query, parts=(*parts, *dict.fromkeys(readers)))
