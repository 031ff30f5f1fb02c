"""Reporters publish a query's positions, that is, how far it has read. Their errors are logged as warnings.

There is one exception: a reporter that adds offsets to a prepared transaction and gets no answer must object to the
decision. Its request may arrive after the commit and change the transaction, so the batch is aborted.
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
        """Checks at the start of a run that the settings match each sink's facts, and raises if they do not."""

    def before_decision(self, handles: Sequence[Handle], sources: Sequence[str]) -> str:
        """Called when a batch is prepared, with its handles and one end offset per source.

        Returns:
            The reason why the batch must not be decided; empty if there is none. An error counts as a reason.
        """

    def after_finish(self, sources: Sequence[str]) -> None:
        """Called when the batch with these end offsets is finished, even if an older run has decided it."""

    def close(self) -> None:
        """Releases connections."""


class Positions:
    """The reporters of a run."""

    def __init__(self, reporters: Sequence[PositionReporter] = ()) -> None:
        self._reporters = tuple(reporters)

    def __len__(self) -> int:
        return len(self._reporters)

    def check(self, facts: Mapping[str, Facts]) -> None:
        """Calls each reporter's `check`, and raises its errors."""
        for reporter in self._reporters:
            reporter.check(facts)

    def before_decision(self, handles: Sequence[Handle], sources: Sequence[str]) -> str:
        """Calls the reporters until one objects to the decision. Returns its reason; empty if none objects."""
        try:
            answers = (reporter.before_decision(handles, sources) for reporter in self._reporters)
            return next(filter(None, answers), "")
        except Exception as error:  # After any error, the reporter may have changed a transaction.
            logger.warning("A position could not be added to a batch.", exc_info=error)
            return f"{type(error).__name__}: {error}"

    def after_finish(self, sources: Sequence[str]) -> None:
        """Calls each reporter's `after_finish`."""
        self._tell(lambda reporter: reporter.after_finish(sources))

    def close(self) -> None:
        """Closes each reporter."""
        self._tell(lambda reporter: reporter.close())

    def _tell(self, call: Callable[[PositionReporter], None]) -> None:
        for reporter in self._reporters:
            try:
                call(reporter)
            except Exception as error:  # noqa: PERF203 - the rows are decided anyway, and the next batch reports again
                logger.warning("A position could not be reported: %s: %s", type(error).__name__, error, exc_info=True)
