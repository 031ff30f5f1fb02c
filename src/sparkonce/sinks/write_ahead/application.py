"""One call of the user's function, which is repeated only if nobody can say whether it was done."""

from __future__ import annotations

import fcntl
import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow.parquet as pq

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.write_ahead.apply import (
    Applies,
    Apply,
    ApplyToken,
    IsApplied,
    Per,
    RefusedError,
    RetryLaterError,
    UnreadRowsError,
    give,
)
from sparkonce.sinks.write_ahead.entry import Entry
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce.sinks.write_ahead.rows import CorruptRowsError, check

log = logging.getLogger("sparkonce")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """The settings of the calls.

    Attributes:
        apply: The user's function.
        is_applied: The user's second function, if there is one.
        applies: The effect of a repeat.
        per: Whether one call gets one slot's rows, or those of all handles of a batch.
        parallel: How many calls run at once; with 1, in the order of slots.
        wait_s: How long one commit waits for its calls, in seconds.
    """

    apply: Apply
    is_applied: IsApplied | None
    applies: Applies
    per: Per
    parallel: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Unit:
    """The files whose rows the function gets in one call; the first of them names it.

    Attributes:
        entries: The files, each in `RowsState.STARTED`.
        repeated: Whether an earlier commit may have called the function.
        number: The number of the ledger's note of its begin; the same at each repeat.
    """

    entries: tuple[Entry, ...]
    repeated: bool
    number: int = 0

    @property
    def name(self) -> TransactionName:
        """The name of the call, the same at each repeat."""
        return self.entries[0].name


class Application:
    """Calls the function, and remembers its answers.

    Args:
        folder: The sink's folder.
        sink: The sink's name.
        settings: The settings of the calls.

    Attributes:
        refused: Maps transactions that it has refused, or whose rows it has left unread, to the reason.
    """

    def __init__(self, folder: WriteAheadFolder, sink: str, settings: CallSettings) -> None:
        self._folder = folder
        self._sink = sink
        self._settings = settings
        self._not_before: dict[str, float] = {}
        self._called: set[str] = set()
        self._returned: set[str] = set()
        self.refused: dict[str, str] = {}

    def noted(self, entries: Sequence[Entry]) -> Finished | None:
        """Returns the answer for rows of one call that are noted as applied; None if they are to be applied."""
        return Finished(outcome=Outcome.ALREADY_COMMITTED) if self._folder.done(entries[0].name) else None

    def apply(self, unit: Unit) -> Finished:
        """Applies the rows unless they are applied already, and notes that they are."""
        try:
            return self._apply(unit)
        except OSError as error:  # the folder's: those of the function are answers already
            return Finished(outcome=Outcome.RETRY, reason=f"The folder {self._folder.location} cannot be used: {error}")

    def _apply(self, unit: Unit) -> Finished:
        name = str(unit.name)
        left_s = self._not_before.get(name, 0.0) - time.monotonic()
        if left_s > 0:
            return Finished(outcome=Outcome.RETRY, reason=f"The function asked not to be called for {left_s:.0f} s.")
        with ExitStack() as files:
            try:
                opened = [files.enter_context(self._folder.open(one.name)) for one in unit.entries]
            except FileNotFoundError as error:
                return self._gone(unit, error)
            if not _lock(opened[0]):
                return Finished(outcome=Outcome.RETRY, reason="Another driver is applying these rows now.")
            if (known := self.noted(unit.entries)) is not None:
                return known
            return self._apply_opened(unit, opened)

    def _gone(self, unit: Unit, error: OSError) -> Finished:
        """Answers for rows that are gone: another driver was faster, or nobody can say whether they were applied."""
        if (known := self.noted(unit.entries)) is not None:
            return known
        reason = f"A commit had begun, and its rows are gone. They may have been applied: {error}"
        return Finished(outcome=Outcome.UNKNOWN, reason=reason)

    def _apply_opened(self, unit: Unit, opened: Sequence[BinaryIO]) -> Finished:
        name = str(unit.name)
        try:
            for entry, file in zip(unit.entries, opened, strict=True):
                check(file, entry.size_bytes, entry.checksum)
            rows = sum(pq.ParquetFile(file).metadata.num_rows for file in opened)
        except CorruptRowsError as error:
            reason = f"{self._folder.url(entry.name)} cannot be used: {error}"
            return Finished(outcome=Outcome.UNKNOWN, reason=reason)
        except OSError as error:
            # Another driver may have applied and deleted them meanwhile, or the store does not answer now.
            reason = f"{self._folder.url(entry.name)} cannot be read: {error}"
            return Finished(outcome=Outcome.RETRY, reason=reason)
        token = ApplyToken(
            id=name,
            query=unit.name.query,
            batch=unit.name.batch,
            slots=tuple(entry.name.slot for entry in unit.entries),
            rows=rows,
        )
        try:
            found = self._call(unit, token, opened)
        except RetryLaterError as error:
            self._not_before[name] = time.monotonic() + error.after_s
            return Finished(outcome=Outcome.RETRY, reason=f"The function says: {error}")
        except RefusedError as error:
            return self._refuse(unit, f"The function refuses the rows: {error}")
        except UnreadRowsError as error:
            return self._refuse(unit, str(error))
        except Exception as error:  # noqa: BLE001 - the function is the user's, and so are its errors
            return Finished(outcome=Outcome.RETRY, reason=f"The function failed: {type(error).__name__}: {error}")
        return self._note(unit, found)

    def _refuse(self, unit: Unit, reason: str) -> Finished:
        self.refused.update({str(entry.name): reason for entry in unit.entries})
        return Finished(outcome=Outcome.UNKNOWN, reason=reason)

    def _call(self, unit: Unit, token: ApplyToken, opened: Sequence[BinaryIO]) -> Outcome:
        if token.id in self._returned:
            return Outcome.COMMITTED
        if unit.repeated or token.id in self._called:
            if self.is_applied(unit, token):
                return Outcome.ALREADY_COMMITTED
            if self._settings.applies is Applies.NEITHER:
                log.warning(
                    "batch=%d sink=%s slots=%s applied again: an earlier call was interrupted, and its %d rows may be "
                    "in the target twice; token %s",
                    token.batch,
                    self._sink,
                    ",".join(map(str, token.slots)),
                    token.rows,
                    token.id,
                )
        self._called.add(token.id)
        self.deliver(unit, token, opened)
        self._returned.add(token.id)
        return Outcome.COMMITTED

    def is_applied(self, unit: Unit, token: ApplyToken) -> bool:  # noqa: ARG002 - for those that override it
        """Asks the target, before a repeat, whether it has these rows."""
        return self._settings.is_applied is not None and self._settings.is_applied(token)

    def deliver(self, unit: Unit, token: ApplyToken, opened: Sequence[BinaryIO]) -> None:  # noqa: ARG002
        """Brings the rows of checked files into the target."""
        give(self._settings.apply, opened, token)

    def _note(self, unit: Unit, found: Outcome) -> Finished:
        """Notes that the rows are applied, and deletes them. If that fails, the next call only does this."""
        try:
            self._folder.note_done(unit.entries)
            self._folder.delete_rows(unit.entries)
        except OSError as error:
            reason = f"The rows are applied, and that could not be noted in {self._folder.location}: {error}"
            return Finished(outcome=Outcome.RETRY, reason=reason)
        for known in (self._called, self._returned):
            known.discard(str(unit.name))
        return Finished(outcome=found)


def _lock(file: BinaryIO) -> bool:
    """Locks out a second driver until the file is closed. If the file's store cannot, the function has to."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
