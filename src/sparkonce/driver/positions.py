"""The reporters of a query's positions, which publish how far it has read. Their errors are warnings.

There is one exception: a reporter that adds to a prepared transaction and gets no answer must object. The request that
is still in flight may change the transaction after its commit, so the batch is abandoned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sparkonce.protocol.handles import Handle
from sparkonce.sink import Facts

logger = logging.getLogger("sparkonce")


class PositionReporter(Protocol):
    """A reporter of positions, such as a consumer group."""

    def check(self, facts: Mapping[str, Facts]) -> None:
        """Checks at the start of a run that the settings fit each sink's facts, and raises if they do not."""

    def before_decision(self, handles: Sequence[Handle], sources: Sequence[str]) -> str:
        """Learns that a batch is prepared, with these handles and, for each source, this end offset.

        Returns:
            Why the batch must not be decided, or an empty string. An error counts as a reason.
        """

    def after_finish(self, sources: Sequence[str]) -> None:
        """Learns that the batch with these end offsets is finished, in this run or an older one."""

    def close(self) -> None:
        """Frees what it holds."""


class Positions:
    """The reporters of a run."""

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
            logger.warning("A position could not be added to a batch.", exc_info=error)
            return f"{type(error).__name__}: {error}"

    def after_finish(self, sources: Sequence[str]) -> None:
        """Tells each."""
        self._tell(lambda reporter: reporter.after_finish(sources))

    def close(self) -> None:
        """Closes each."""
        self._tell(lambda reporter: reporter.close())

    def _tell(self, call: Callable[[PositionReporter], None]) -> None:
        for reporter in self._reporters:
            try:
                call(reporter)
            except Exception as error:  # noqa: PERF203 - the rows are decided, and the next batch reports anyway
                logger.warning("A position could not be reported: %s: %s", type(error).__name__, error, exc_info=True)
