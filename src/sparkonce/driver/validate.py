"""Asks for objections to a prepared batch: of the sinks, of the positions, and by the age of its transactions."""

from __future__ import annotations

import time

from sparkonce import errors
from sparkonce.driver.ages import too_old
from sparkonce.driver.positions import Positions
from sparkonce.driver.sinks import RunSinks
from sparkonce.driver.stops import Trouble
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.handles import Handle


class Validator:
    """Asks for objections.

    Args:
        sinks: Of the run.
        positions: Told of the batch's end offsets.
        trouble: Takes in what a question failed by.

    Attributes:
        opened_s: When the batch's first transaction may have been opened, by `time.monotonic`.
    """

    def __init__(self, sinks: RunSinks, positions: Positions, trouble: Trouble) -> None:
        self._sinks = sinks
        self._positions = positions
        self._trouble = trouble
        self.opened_s = 0.0
        self._handles: tuple[Handle, ...] = ()
        self._written: tuple[str, ...] = ()

    def validate(self, effect: do.Validate) -> on.Validated | on.Objected | on.TooOld:
        """Asks each sink, then the positions, then the servers how old the transactions are. An error is an objection.

        Positions come behind the sinks, because they add to the transactions, and the age last, because all else
        takes time.
        """
        self._handles, self._written = effect.handles, effect.sinks
        if reason := self._objection() or self._positions.before_decision(effect.handles, effect.offsets):
            return on.Objected(reason=reason)
        try:
            late = self.grown_old()
        except errors.UnknownOutcomeError as error:
            return on.Objected(reason=self._trouble.note(error))
        return on.TooOld(reason=late) if late else on.Validated()

    def _objection(self) -> str:
        transactional = (name for name in self._sinks.transactional if name in self._written)
        try:
            return next(filter(None, map(self._objection_of, transactional)), "")
        except Exception as error:  # noqa: BLE001 - every transaction is prepared, and has to be aborted first
            return self._trouble.note(error)

    def _objection_of(self, sink: str) -> str:
        committer = self._sinks.committer(sink)
        own = [handle for handle in self._handles if handle.sink == sink]
        return committer.before_decision(self._sinks.facts(sink)) or committer.check_prepared(own)

    def grown_old(self) -> str:
        """Says so if a transaction of the batch that was validated last has grown too old; empty if none has.

        Raises:
            UnknownOutcomeError: if a server cannot be asked now.
        """
        took_s = time.monotonic() - self.opened_s
        for life in self._sinks.lives(self._written):
            own = [handle for handle in self._handles if handle.sink == life.sink and handle.transaction]
            if late := too_old(own, took_s, time.time(), life, self._sinks.committer(life.sink).begun_ms):
                return late
        return ""
