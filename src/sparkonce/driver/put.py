"""Puts records into the decision log and deletes old ones, waiting for a store that is full or unreachable."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from functools import partial

from sparkonce import errors
from sparkonce.decision_log import DecisionLog
from sparkonce.driver import stops
from sparkonce.driver.outage import Outage, doubled, is_store_outage
from sparkonce.driver.stops import Failure
from sparkonce.driver.work import BatchWork
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.view import Claim, Commit, LogView, LogViolation, Void
from sparkonce.storage.files import PutUnknownError

logger = logging.getLogger("sparkonce")
CONTESTED = 4
"""After this many consecutive claims, a run waits before its own, so that competing drivers back off."""
LONGEST_BACK_OFF_S = 30.0


class LogWriter:
    """Writes to the decision log for one run.

    Args:
        patience_s: How long to wait for a full or unreachable store, in seconds.
        grown_old: Returns a message if a transaction of the batch being decided has become too old; empty if none has.
    """

    def __init__(self, log: DecisionLog, patience_s: float, failure: Failure, grown_old: Callable[[], str]) -> None:
        self._log = log
        self._patience_s = patience_s
        self._failure = failure
        self._grown_old = grown_old
        self.sync_ahead = log.sync_ahead

    def put(self, effect: do.Put, view: LogView, work: BatchWork) -> on.Event:
        """Puts a record, then reads the floor, as the protocol requires."""
        if effect.contested >= CONTESTED:
            _back_off(effect.contested, work.is_stopped)
        self._failure.clear()
        outage = Outage(self._patience_s, is_stopped=work.is_stopped)
        doing = f"record {effect.position} of the decision log could not be written"
        try:
            event = outage.retry(partial(self._try, effect, view, outage), doing, again=is_store_outage)
        except PutUnknownError as error:
            return on.PutUnknown(position=effect.position, reason=str(error))
        except OSError as error:
            self._failure.cause = error
            return on.PutRefused(position=effect.position, reason=str(error))
        if isinstance(event, on.PutLanded) and isinstance(effect.record, Commit):
            logger.debug("batch %d is decided at position %d", effect.record.batch, effect.position)
        return event

    def _try(self, effect: do.Put, view: LogView, outage: Outage) -> on.Event:
        if outage.has_waited and (event := self._meanwhile(effect, view)) is not None:
            return event
        try:
            standing = self._log.put(effect.position, effect.record)
        except OSError as error:
            self._failure.cause = error
            raise
        self._failure.clear()
        try:
            floor = self._log.floor()
        except OSError as error:
            reason = f"the floor could not be read behind it: {error}"
            return on.PutUnknown(position=effect.position, reason=reason)
        if standing is not None:
            return on.PutTaken(position=effect.position, standing=standing, floor=floor)
        return on.PutLanded(position=effect.position, floor=floor)

    def _meanwhile(self, effect: do.Put, view: LogView) -> on.Event | None:
        """Returns the event that ends a put whose position is taken; None if the put should be retried.

        Raises:
            OSError: If a transaction that the record names has become too old.
        """
        if self.went_on(view) and (standing := self._log.standing(effect.position)) is not None:
            return on.PutTaken(position=effect.position, standing=standing, floor=self._log.floor())
        if isinstance(effect.record, Claim | Void):
            return None
        try:
            late = self._grown_old()
        except errors.UnknownOutcomeError as error:
            late = stops.first_line(error)
        if late:
            raise OSError(f"{self._failure.cause}; meanwhile {late}")
        return None

    def went_on(self, view: LogView) -> bool:
        """Returns True if the log has records beyond the view. Returns False if the log cannot be read."""
        try:
            return self._log.read(view).end > view.end
        except (OSError, LogViolation, errors.LogError) as error:
            logger.warning("The decision log could not be read: %s", error)
            return False

    def tidy(self, effect: do.RaiseFloor | do.DeleteBelow, work: BatchWork) -> on.Event:
        """Raises the floor, or deletes the records below it. Waits for a full or unreachable store."""
        outage = Outage(self._patience_s, is_stopped=work.is_stopped)
        doing = f"old records of the decision log {self._log.location} could not be tidied away"
        try:
            if isinstance(effect, do.RaiseFloor):
                outage.retry(partial(self._log.raise_floor, effect.floor), doing, again=is_store_outage)
                return on.FloorRaised(floor=effect.floor)
            outage.retry(partial(self._log.delete_below, effect.position), doing, again=is_store_outage)
        except (OSError, PutUnknownError) as error:
            raise errors.LogError(
                f"{doing}: {error}",
                next_step="make the checkpoint's disk writable, or give keys that its store accepts, and start the "
                "query again; no row is lost.",
            ) from error
        return on.Deleted()


def _back_off(contested: int, is_stopped: Callable[[], bool]) -> None:
    wait_s = doubled(1.0, contested - CONTESTED, LONGEST_BACK_OFF_S) * random.uniform(0.5, 1.0)  # noqa: S311
    logger.warning(
        "%d runs have claimed this query without committing a batch; waiting %.1f s before the next claim. Two "
        "supervised drivers on one checkpoint keep superseding each other. Next: stop one of them.",
        contested,
        wait_s,
    )
    until_s = time.monotonic() + wait_s
    while not is_stopped() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(1.0, left_s))
