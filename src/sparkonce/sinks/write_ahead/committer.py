"""The driver's half: reads each file back and gives it to the user's function, once as far as can be known."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner, SinkCommitter
from sparkonce.sinks.write_ahead.application import Application, How, Unit
from sparkonce.sinks.write_ahead.calls import Calls
from sparkonce.sinks.write_ahead.entry import Entry
from sparkonce.sinks.write_ahead.folder import Stand, WriteAheadFolder

log = logging.getLogger("sparkonce")

KEEP_BATCHES = 200
"""Whose markers are kept. The log keeps the decisions of the last 100."""

TIDY_EVERY_BATCHES = 20
TRACED_BATCHES = 5
"""Of each run, how many of its newest batches are told as traces: the newest shows an old copy of the log."""


class WriteAheadCommitter(SinkCommitter):
    """Finishes transactions whose rows are files.

    Args:
        folder: The sink's.
        sink: Its name.
        prefix: Its name, as it stands in names of files.
        how: How the function is called.
        application: What calls it; by default what `how` says.
    """

    def __init__(
        self, folder: WriteAheadFolder, sink: str, prefix: str, how: How, application: Application | None = None
    ) -> None:
        self._folder = folder
        self._sink = sink
        self._prefix = prefix
        self._how = how
        self._calls = Calls(how.parallel)
        self._application = application or Application(folder, sink, how)

    # --- commit -----------------------------------------------------------------------------------------------------

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """Applies what is not yet applied. See `SinkCommitter.commit`.

        Raises:
            UnknownOutcomeError: if asked again for what the function has refused in this run: the query is to stop.
        """
        self._stop_if_refused(handles)
        answers: dict[TransactionName, Finished] = {}
        known: dict[TransactionName, Entry] = {}
        for handle in handles:
            entry = Entry.of_handle(handle)
            if entry is not None and entry.name.prefix == self._prefix:
                known[entry.name] = entry
        units: dict[str, Unit] = {}
        try:
            self._check_identity(known.values())
            for unit in self._units(list(known.values()), answers):
                units[str(unit.name)] = unit
            self._folder.sync(Stand.STARTED)
        except OSError as error:
            retry = Finished(outcome=Outcome.RETRY, reason=f"the folder {self._folder.root} cannot be read: {error}")
            answers = {name: answers.get(name, retry) for name in known}
            units = {}
        except _ForeignFolderError as error:
            answers = dict.fromkeys(known, Finished(outcome=Outcome.UNKNOWN, reason=str(error)))
        ended = self._calls.run(
            {name: partial(self._application.apply, unit) for name, unit in units.items()}, self._how.wait_s
        )
        for name, unit in units.items():
            answers.update(dict.fromkeys((entry.name for entry in unit.entries), ended[name]))
        stranger = Finished(outcome=Outcome.UNKNOWN, reason="the handle is not one of this sink's")
        entries = [Entry.of_handle(handle) for handle in handles]
        return [stranger if entry is None else answers.get(entry.name, stranger) for entry in entries]

    def _stop_if_refused(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            reason = self._application.refused.get(str(dict(handle.transaction).get("name")))
            if reason is not None:
                raise UnknownOutcomeError(
                    f"sink {self._sink!r}: {reason}",
                    next_step="remove the cause and start the query again: the rows are kept, and are applied then.",
                    sink=self._sink,
                    slot=handle.slot,
                )

    def _check_identity(self, entries: Iterable[Entry]) -> None:
        found = self._folder.identity()
        for entry in entries:
            if entry.identity != found:
                raise _ForeignFolderError(
                    f"the rows are in the folder with identity {entry.identity}, and {self._folder.root} has identity "
                    f"{found}: another disk is mounted there, or the folder was made anew"
                )

    def _units(self, entries: list[Entry], answers: dict[TransactionName, Finished]) -> list[Unit]:
        """What is to be applied, in order of slots; what need not be or cannot be is answered."""
        # By run, too: what replaces lost rows is of another run than the rest, and is written after it in any case.
        batches: dict[tuple[str, int, Token], list[Entry]] = {}
        for entry in entries:
            batches.setdefault((entry.name.query, entry.name.batch, entry.name.token), []).append(entry)
        units = [unit for _, some in sorted(batches.items()) for unit in self._batch_units(some, answers)]
        if self._how.per == "slot":
            units.sort(key=lambda unit: _by_slot(unit.entries[0]))
        return units

    def _batch_units(self, entries: list[Entry], answers: dict[TransactionName, Finished]) -> list[Unit]:
        query, batch = entries[0].name.query, entries[0].name.batch
        ledger = self._folder.ledger
        own: set[int] = set()
        while True:
            found = ledger.begun(query, batch)
            begun = {entry.name for group in found for entry in group}
            new = [one for one in sorted(entries, key=_by_slot) if one.name not in begun | set(answers)]
            told: dict[TransactionName, Finished] = {}
            new = [one for one in new if self._take(one, told)]
            if told and len(ledger.begun(query, batch)) > len(found):
                continue  # another driver has begun meanwhile, and may have applied and deleted these files
            answers.update(told)
            if not new:
                break
            self._folder.sync(Stand.STARTED)
            if ledger.begin(query, batch, len(found), new):
                own.add(len(found))
        units = []
        asked = {entry.name for entry in entries}
        for number, group in enumerate(found):
            for call in self._calls_of(group):
                if asked.isdisjoint(entry.name for entry in call):
                    continue
                if self._folder.done(call[0].name):
                    done = Finished(outcome=Outcome.ALREADY_COMMITTED)
                    answers.update(dict.fromkeys((entry.name for entry in call), done))
                    self._folder.delete_rows(call)
                    continue
                for entry in call if number not in own else ():
                    # Only in a folder that was put back to an earlier state. It is a repeat like any other.
                    self._folder.move(entry.name, Stand.PREPARED, Stand.STARTED)
                units.append(Unit(tuple(call), repeated=number not in own, number=number))
        return units

    def _calls_of(self, group: list[Entry]) -> list[list[Entry]]:
        """The calls that are made for what a commit has begun with."""
        return [group] if self._how.per == "batch" else [[entry] for entry in group]

    def _take(self, entry: Entry, answers: dict[TransactionName, Finished]) -> bool:
        """Takes a file that no commit has begun with, so that no abort can have it. If it is not there, says why."""
        name = entry.name
        if self._folder.move(name, Stand.PREPARED, Stand.STARTED):
            return True
        stand = self._folder.find(name)
        if stand is Stand.STARTED:
            return True  # the driver that took it was killed before it had noted that it begins
        if stand is Stand.DONE:
            self._folder.delete_rows([entry])
            answers[name] = Finished(outcome=Outcome.ALREADY_COMMITTED)
        elif stand is not None:
            answers[name] = Finished(outcome=Outcome.RETRY, reason="the file has come back just now")
        elif name.batch <= self._folder.ledger.forgotten_up_to(name.query):
            reason = (
                f"what became of batch {name.batch} is no longer known: markers are kept for {KEEP_BATCHES} batches"
            )
            answers[name] = Finished(outcome=Outcome.UNKNOWN, reason=reason)
        else:
            reason = "the rows are not there, and no commit has begun with them"
            answers[name] = Finished(outcome=Outcome.LOST, reason=reason)
        return False

    # --- abort, sweep, tidy -----------------------------------------------------------------------------------------

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """Deletes files that no commit has begun with."""
        return [self._abort(handle) for handle in handles]

    def _abort(self, handle: Handle) -> Finished:
        name = TransactionName.parse(str(handle["name"]))
        if name is None or name.prefix != self._prefix:
            return Finished(outcome=Outcome.UNKNOWN, reason="the handle is not one of this sink's")
        stand: Stand | None = None
        try:
            call = self._call_with(name)
            if not call:
                stand = self._folder.discard(name)
                call = self._call_with(name)  # which another driver may have begun with meanwhile
            if stand is Stand.DONE or (call and self._folder.done(call[0].name)):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
        except OSError as error:
            return Finished(outcome=Outcome.RETRY, reason=f"the rows could not be deleted: {error}")
        if call or stand is not None:
            return Finished(outcome=Outcome.UNKNOWN, reason="a commit of it has begun")
        return Finished(outcome=Outcome.ABORTED)

    def _call_with(self, name: TransactionName) -> list[Entry]:
        """The call that a commit has begun with and that gets these rows; nothing if there is none."""
        groups = self._folder.ledger.begun(name.query, name.batch)
        calls = (call for group in groups for call in self._calls_of(group))
        return next((call for call in calls if name in {entry.name for entry in call}), [])

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """Files that are open or prepared."""
        wanted = {(owner.query, owner.token) for owner in owners}
        try:
            names = [name for stand in (Stand.OPEN, Stand.PREPARED) for name in self._folder.names(stand)]
        except OSError as error:
            raise self._unreadable(error) from error
        return [
            Handle(sink=self._sink, slot=name.slot, transaction=transaction_fields({"name": str(name)}))
            for name in sorted(set(names), key=str)
            if name.prefix == self._prefix and (name.query, name.token) in wanted
        ]

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """Deletes old markers, now and then."""
        names = [entry.name for handle in handles if (entry := Entry.of_handle(handle)) is not None]
        if not names:
            return
        query, up_to = names[0].query, batch - KEEP_BATCHES
        try:
            # Not at every twentieth batch: those may all be without rows.
            if up_to - self._folder.ledger.forgotten_up_to(query) >= TIDY_EVERY_BATCHES:
                self._folder.forget(query, up_to)
        except OSError as error:
            log.warning("sink %s: old markers in %s could not be deleted: %s", self._sink, self._folder.root, error)

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:  # noqa: ARG002 - the folder is the sink's own
        """The newest markers of each run."""
        try:
            names = [one for one in self._folder.names(Stand.DONE) if (one.prefix, one.query) == (self._prefix, query)]
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
            f"the folder {self._folder.root} of sink {self._sink!r} cannot be read: {error}",
            next_step="see that its disk is there, then start the query again.",
        )


class _ForeignFolderError(Exception):
    """The folder is not the one that the rows were written to."""


def _by_slot(entry: Entry) -> tuple[int, str]:
    return entry.name.slot, str(entry.name)
