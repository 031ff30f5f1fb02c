"""Those who are told how far a query has read. What goes wrong there never stops a batch, and never repeats one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sparkonce.protocol.handles import Handle
from sparkonce.sinks.base import Facts

logger = logging.getLogger("sparkonce")


class PositionReporter(Protocol):
    """Somebody who is told, such as a consumer group."""

    def check(self, facts: Mapping[str, Facts]) -> None:
        """Sees at the start of a run, with each sink's facts, whether the settings fit; raises if they do not."""

    def before_decision(self, handles: Sequence[Handle], sources: Sequence[str]) -> None:
        """A batch is prepared, with these handles and, for each source, this end offset."""

    def after_finish(self, sources: Sequence[str]) -> None:
        """The batch with these end offsets is decided and finished, in this run or an older one."""

    def close(self) -> None:
        """Frees what it holds."""


class Positions:
    """All reporters of a run."""

    def __init__(self, reporters: Sequence[PositionReporter] = ()) -> None:
        self._reporters = tuple(reporters)

    def __len__(self) -> int:
        return len(self._reporters)

    def check(self, facts: Mapping[str, Facts]) -> None:
        """Asks each. Raises what they raise."""
        for reporter in self._reporters:
            reporter.check(facts)

    def before_decision(self, handles: Sequence[Handle], sources: Sequence[str]) -> None:
        """Tells each."""
        self._tell(lambda reporter: reporter.before_decision(handles, sources))

    def after_finish(self, sources: Sequence[str]) -> None:
        """Tells each."""
        self._tell(lambda reporter: reporter.after_finish(sources))

    def close(self) -> None:
        """Closes each."""
        self._tell(lambda reporter: reporter.close())

    def _tell(self, call: Callable[[PositionReporter], None]) -> None:
        for reporter in self._reporters:
            _tell_one(reporter, call)


def _tell_one(reporter: PositionReporter, call: Callable[[PositionReporter], None]) -> None:
    try:
        call(reporter)
    except Exception as error:
        # The rows are decided without it, and the next batch's positions say it all again.
        logger.warning("a position could not be reported: %s: %s", type(error).__name__, error, exc_info=True)
