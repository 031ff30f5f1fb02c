"""The explanation: every part of a query with its level and the reasons, as an object and as JSON.

`judge` creates it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkonce.analysis.engine import judge_engine
from sparkonce.analysis.facts import Pipeline
from sparkonce.analysis.findings import Part, Role
from sparkonce.analysis.sinks import judge_reader, judge_sink
from sparkonce.analysis.sources import judge_source
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee, weakest

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The guarantee of a query, end to end. Printing it shows the table.

    Attributes:
        query: The query's name, id or file.
        parts: Sources, engine, sinks and readers, in this order.
    """

    query: str
    parts: tuple[Part, ...]

    @property
    def level(self) -> Guarantee:
        """The level of the whole query, which is the level of its weakest part."""
        return weakest(part.level for part in self.parts)

    @property
    def weakest(self) -> tuple[Part, ...]:
        """The parts with the lowest level; empty if the query is exactly-once."""
        if self.level is Guarantee.EXACTLY_ONCE:
            return ()
        return tuple(part for part in self.parts if part.level is self.level)

    def part(self, role: Role | str) -> Part:
        """Returns the first part with this role.

        Raises:
            KeyError: If there is none.
        """
        for part in self.parts:
            if part.role is Role(role):
                return part
        raise KeyError(role)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values. ``weakest`` contains indices into ``parts``."""
        return {
            "query": self.query,
            "level": self.level.value,
            "weakest": [self.parts.index(part) for part in self.weakest],
            "parts": [part.to_dict() for part in self.parts],
        }

    def to_json(self) -> str:
        """Returns `to_dict` as JSON."""
        return json.dumps(self.to_dict())

    def __rich__(self) -> RenderableType:
        from sparkonce.analysis.table import render  # imported here because rich is slow to import

        return render(self.parts, self.level, self.weakest)

    def __str__(self) -> str:
        from sparkonce.analysis.table import as_text

        return as_text(self.__rich__())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - IPython's
        printer.text(str(self))

    def _repr_html_(self) -> str:
        from sparkonce.analysis.table import as_html

        return as_html(self.__rich__())


def judge(pipeline: Pipeline) -> Explanation:
    """Returns the level of each part of the pipeline, with the reasons."""
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
