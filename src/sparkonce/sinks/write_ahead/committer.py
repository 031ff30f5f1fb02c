"""The driver half: reads each file back and passes its rows to the user's function, exactly once if possible."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce.protocol.horizon import SINKS_KEEP_BATCHES
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner
from sparkonce.sinks._shared.committing import FOREIGN, HandleCommitter
from sparkonce.sinks.write_ahead.application import Application, Calls, CallSettings, Unit
from sparkonce.sinks.write_ahead.folder import RowsState, WriteAheadFolder
from sparkonce.sinks.write_ahead.ledger import FIELDS, Entry

log = logging.getLogger("sparkonce")

KEEP_BATCHES = SINKS_KEEP_BATCHES
"""The number of batches whose markers are kept."""

TIDY_EVERY_BATCHES = 20
TRACED_BATCHES = 5
"""The number of each run's latest batches that serve as traces. The newest trace reveals an old copy of the log."""

Answers = dict[TransactionName, Finished]

_NOT_ALL = Finished(outcome=Outcome.RETRY, reason="Another file of the same call has just reappeared.")
_GIVEN_UP = Finished(outcome=Outcome.LOST, reason="Other rows of the same call are gone, and no commit has begun.")


class WriteAheadCommitter(HandleCommitter[TransactionName]):
    """Finishes transactions whose rows wait in files.

    Args:
        folder: The sink's folder.
        sink: The sink's name.
        prefix: The prefix of the sink's file names, which is derived from the sink's name.
        settings: The settings of the calls.
        application: The object that makes the calls. By default, it calls the user's function.
    """

    handle_fields = FIELDS

    def __init__(
        self,
        folder: WriteAheadFolder,
        sink: str,
        prefix: str,
        settings: CallSettings,
        application: Application | None = None,
    ) -> None:
        self._folder = folder
        self._sink = sink
        self._prefix = prefix
        self._settings = settings
        self._calls = Calls(settings.parallel)
        self._application = application or Application(folder, sink, settings)

    # --- commit -----------------------------------------------------------------------------------------------------

    def transaction_of(self, handle: Handle) -> TransactionName | Finished:
        name = TransactionName.parse(str(dict(handle.transaction).get("name", "")))
        return FOREIGN if name is None or name.prefix != self._prefix else name

    def commit_all(self, wanted: Mapping[TransactionName, Handle]) -> Answers:
        """Applies all rows that are not yet applied.

        Raises:
            UnknownOutcomeError: If the function has already rejected the rows in this run. The query must then stop.
        """
        self._stop_if_refused(wanted)
        known = {name: entry for name, handle in wanted.items() if (entry := Entry.of_handle(handle)) is not None}
        answers: Answers = {}
        units: dict[str, Unit] = {}
        try:
            self._check_identity(known.values())
            for unit in self._units(list(known.values()), answers):
                units[str(unit.name)] = unit
            self._folder.sync_taken()
        except OSError as error:
            retry = Finished(
                outcome=Outcome.RETRY, reason=f"The folder {self._folder.location} cannot be read: {error}"
            )
            answers = {name: answers.get(name, retry) for name in known}
            units = {}
        except _ForeignFolderError as error:
            answers = dict.fromkeys(known, Finished(outcome=Outcome.UNKNOWN, reason=str(error)))
        ended = self._calls.run(
            {name: partial(self._application.apply, unit) for name, unit in units.items()}, self._settings.wait_s
        )
        for name, unit in units.items():
            answers.update(dict.fromkeys((entry.name for entry in unit.entries), ended[name]))
        return {name: answers.get(name, FOREIGN) for name in wanted}

    def _stop_if_refused(self, wanted: Mapping[TransactionName, Handle]) -> None:
        for name, handle in wanted.items():
            reason = self._application.refused.get(str(name))
            if reason is not None:
                raise UnknownOutcomeError(
                    f"Sink {self._sink!r}: {reason}",
                    next_step="Remove the cause and start the query again: the rows are kept, and are applied then.",
                    sink=self._sink,
                    slot=handle.slot,
                )

    def _check_identity(self, entries: Iterable[Entry]) -> None:
        found = self._folder.identity()
        for entry in entries:
            if entry.identity != found:
                raise _ForeignFolderError(
                    f"The rows are in the folder with identity {entry.identity}, and {self._folder.location} has "
                    f"identity {found}: another disk is mounted there, or the folder was recreated."
                )

    def _units(self, entries: list[Entry], answers: Answers) -> list[Unit]:
        """Returns the units to apply, in slot order, and adds the answers for all other files."""
        # Group by run as well: rows that replace lost ones are from a later run, and must be applied after the others.
        batches: dict[tuple[str, int, Token], list[Entry]] = {}
        for entry in entries:
            batches.setdefault((entry.name.query, entry.name.batch, entry.name.token), []).append(entry)
        units = [unit for _, some in sorted(batches.items()) for unit in self._batch_units(some, answers)]
        if self._settings.per == "slot":
            units.sort(key=lambda unit: _by_slot(unit.entries[0]))
        return units

    def _batch_units(self, entries: list[Entry], answers: Answers) -> list[Unit]:
        query, batch = entries[0].name.query, entries[0].name.batch
        ledger = self._folder.ledger
        own: set[int] = set()
        while True:
            found = ledger.groups(query, batch)
            noted = {entry.name for group in found for entry in group.entries}
            wanted = [one for one in sorted(entries, key=_by_slot) if one.name not in noted | set(answers)]
            told: Answers = {}
            new = [one for one in wanted if self._take(one, told)]
            if told and len(ledger.groups(query, batch)) > len(found):
                continue  # Another driver has started a call since then. It may have applied and deleted these files.
            if new and self._settings.per == "batch" and Outcome.LOST in {one.outcome for one in told.values()}:
                # The function must get a batch in a single call. Treat the remaining files as lost, too, so that all
                # rows of the batch are written again together.
                ledger.give_up(query, batch, len(found), wanted)
                continue
            answers.update(told)
            if (
                new
                and self._settings.per == "batch"
                and told
                and Outcome.RETRY in {one.outcome for one in told.values()}
            ):
                answers.update({one.name: _NOT_ALL for one in new})
                break
            if not new:
                break
            self._folder.sync_taken()
            if ledger.begin(query, batch, len(found), new):
                own.add(len(found))
        units = []
        asked = {entry.name for entry in entries}
        for number, group in enumerate(found):
            if group.is_lost:
                answers.update({entry.name: _GIVEN_UP for entry in group.entries if entry.name in asked})
                self._folder.delete_rows(group.entries)
                continue
            for call in self._calls_of(group.entries):
                if asked.isdisjoint(entry.name for entry in call):
                    continue
                if (known := self._application.noted(call)) is not None:
                    answers.update(dict.fromkeys((entry.name for entry in call), known))
                    if known.outcome is Outcome.ALREADY_COMMITTED:
                        self._folder.delete_rows(call)
                    continue
                for entry in call if number not in own else ():
                    # If the folder was restored from an earlier state, its files may not be marked as started. Handle
                    # this call like any other repeated call.
                    self._folder.take(entry.name)
                units.append(Unit(tuple(call), repeated=number not in own, number=number))
        return units

    def _calls_of(self, group: list[Entry]) -> list[list[Entry]]:
        """Splits a group of files whose commit has started into the calls of the function."""
        return [group] if self._settings.per == "batch" else [[entry] for entry in group]

    def _take(self, entry: Entry, answers: Answers) -> bool:
        """Marks a file as started, so that no abort can delete it.

        If the file is gone, adds the answer for it and returns False.
        """
        name = entry.name
        if self._folder.take(name):
            return True
        state = self._folder.find(name)
        if state is RowsState.STARTED:
            return True  # The driver that marked the file was killed before it recorded the start of a call.
        if state is RowsState.DONE:
            self._folder.delete_rows([entry])
            answers[name] = Finished(outcome=Outcome.ALREADY_COMMITTED)
        elif state is not None:
            answers[name] = Finished(outcome=Outcome.RETRY, reason="The file has just reappeared.")
        elif name.batch <= self._folder.ledger.forgotten_up_to(name.query):
            reason = f"The outcome of batch {name.batch} is no longer known: {KEEP_BATCHES} batches keep their markers."
            answers[name] = Finished(outcome=Outcome.UNKNOWN, reason=reason)
        else:
            reason = "The rows are not there, and no commit has begun with them."
            answers[name] = Finished(outcome=Outcome.LOST, reason=reason)
        return False

    # --- abort, sweep, tidy -----------------------------------------------------------------------------------------

    def abort_all(self, wanted: Mapping[TransactionName, Handle]) -> Answers:
        """Deletes files whose commit has not started."""
        return {name: self._abort(name) for name in wanted}

    def _abort(self, name: TransactionName) -> Finished:
        state: RowsState | None = None
        try:
            call = self._call_with(name)
            if not call:
                state = self._folder.discard(name)
                call = self._call_with(name)  # Another driver may have started to commit these rows since then.
            if state is RowsState.DONE or (call and self._folder.done(call[0].name)):
                self._folder.delete_rows(call)  # A put may have arrived after the rows were deleted.
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
        except OSError as error:
            return Finished(outcome=Outcome.RETRY, reason=f"The rows could not be deleted: {error}")
        if call or state is not None:
            return Finished(outcome=Outcome.UNKNOWN, reason="A commit of it has begun.")
        return Finished(outcome=Outcome.ABORTED)

    def _call_with(self, name: TransactionName) -> list[Entry]:
        """Returns the files of the call that includes these rows; none if no commit has started such a call."""
        groups = self._folder.ledger.begun(name.query, name.batch)
        calls = (call for group in groups for call in self._calls_of(group))
        return next((call for call in calls if name in {entry.name for entry in call}), [])

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """Lists files that are open or prepared."""
        wanted = {(self._prefix, owner.query, owner.token) for owner in owners}
        try:
            names = self._folder.lingering(lambda name: (name.prefix, name.query, name.token) in wanted)
        except OSError as error:
            raise self._unreadable(error) from error
        return [
            Handle(sink=self._sink, slot=name.slot, transaction=transaction_fields({"name": str(name)}))
            for name in sorted(set(names), key=str)
        ]

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """Deletes old markers, now and then."""
        names = [entry.name for handle in handles if (entry := Entry.of_handle(handle)) is not None]
        if not names:
            return
        query, up_to = names[0].query, batch - KEEP_BATCHES
        try:
            # Compare with the last cleanup: the twentieth batch itself might have no rows.
            if up_to - self._folder.ledger.forgotten_up_to(query) >= TIDY_EVERY_BATCHES:
                self._folder.forget(query, up_to)
        except OSError as error:
            log.warning("Sink %s: old markers in %s could not be deleted: %s", self._sink, self._folder.location, error)

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:  # noqa: ARG002 - the folder is the sink's own
        """Lists the newest markers of each run."""
        try:
            done = self._folder.names(RowsState.DONE.value)
            names = [one for one in done if (one.prefix, one.query) == (self._prefix, query)]
            batches = {one.token: set[int]() for one in names}
            for one in names:
                batches[one.token].add(one.batch)
            newest = {token: sorted(found)[-TRACED_BATCHES:] for token, found in batches.items()}
            entries = [entry for one in names if one.batch in newest[one.token] for entry in self._folder.done(one)]
        except OSError as error:
            raise self._unreadable(error) from error
        return [
            Trace(token=one.name.token, committed=transaction_fields(one.fields()), batch=one.name.batch)
            for one in entries
        ]

    def _unreadable(self, error: OSError) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"The folder {self._folder.location} of sink {self._sink!r} cannot be read: {error}",
            next_step="Check that its disk is mounted, then start the query again.",
        )


class _ForeignFolderError(Exception):
    """Raised if the folder is not the one that the rows were written to."""


def _by_slot(entry: Entry) -> tuple[int, str]:
    return entry.name.slot, str(entry.name)
