"""Those who are told how far a query has read. What goes wrong there is a warning.

But for one thing: who adds to a prepared transaction and does not learn whether that was done must say so, because
what is still under way may change the transaction after its commit. The batch is then given up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sparkonce.protocol.handles import Handle
from sparkonce.sink import Facts

logger = logging.getLogger("sparkonce")


class PositionReporter(Protocol):
    """Somebody who is told, such as a consumer group."""

    def check(self, facts: Mapping[str, Facts]) -> None:
        """Sees at the start of a run, with each sink's facts, whether the settings fit; raises if they do not."""

    def before_decision(self, handles: Sequence[Handle], sources: Sequence[str]) -> str:
        """A batch is prepared, with these handles and, for each source, this end offset.

        Returns:
            Why the batch must not be decided, or an empty string. An error counts as a reason.
        """

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

    def before_decision(self, handles: Sequence[Handle], sources: Sequence[str]) -> str:
        """Tells each, until one says why the batch must not be decided; an empty string if none does."""
        try:
            answers = (reporter.before_decision(handles, sources) for reporter in self._reporters)
            return next(filter(None, answers), "")
        except Exception as error:  # whatever it is, it may have touched a transaction
            logger.warning("a position could not be added to a batch", exc_info=error)
            return f"{type(error).__name__}: {error}"

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
