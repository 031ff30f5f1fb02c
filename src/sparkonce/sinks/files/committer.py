"""The driver half of the files sink: publishes, discards, finds what is held back, and says what is whole."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from sparkonce.errors import CorruptRecordError, UnknownOutcomeError
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner, SinkCommitter, claimed_by
from sparkonce.sinks.files import manifests
from sparkonce.sinks.files.handle import LISTS, Listed, read_handle, read_list
from sparkonce.sinks.files.manifests import Manifest
from sparkonce.sinks.files.outcomes import before_publish, of_abort, of_commit
from sparkonce.sinks.files.store import Fields, FileState, FileStore

TIDY_EVERY = 100
"""Batches between one look for what can be tidied and the next, in a run."""

KEPT_BATCHES = 200
"""How many of the newest batches keep the lists of their files, and manifests of their own. The log keeps 100."""

TRACED_BATCHES = 10
"""Of how many of the newest batches a start reads the manifests, and each run's newest one."""

Answer = TypeVar("Answer")

_NOTHING = Finished(outcome=Outcome.COMMITTED, reason="The slot had no rows: there is nothing to finish.")

_MISSING = frozenset({Outcome.LOST, Outcome.UNKNOWN})
_TAKEN_AWAY = Finished(
    outcome=Outcome.ALREADY_COMMITTED,
    reason="Not all of its files are there, but its batch's manifest names them: somebody has taken files away since.",
)


class FilesCommitter(SinkCommitter):
    """Publishes and discards by what the handles say, from any process.

    Args:
        store: Where the files are.
        name: The sink's name.
        manifest: Whether whole batches are listed.
    """

    def __init__(self, store: FileStore, name: str, *, manifest: bool) -> None:
        self._store = store
        self._name = name
        self._manifest = manifest
        self._tidy_from = 0

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """See `SinkCommitter.commit`. All files of all handles go to the store in one call."""
        answers, open_files = self._open(handles)
        self._look(answers, open_files)
        flat = [(place, one) for place, files in open_files.items() if place not in answers for one in files]
        for place, found in self._grouped(flat, self._store.publish([one for _, one in flat]) if flat else []).items():
            answers[place] = of_commit(found)
        lost = {place: files for place, files in open_files.items() if answers[place].outcome is Outcome.LOST}
        answers.update(self._make_final(handles, lost))
        missing = {place: answers[place] for place in open_files if answers[place].outcome in _MISSING}
        answers.update(self._ask_manifests(handles, missing))
        return [answers[place] for place in range(len(handles))]

    def _ask_manifests(self, handles: Sequence[Handle], missing: Mapping[int, Finished]) -> Mapping[int, Finished]:
        """What its batch's manifest names was committed: a reader may delete what it has read."""
        try:
            whole = self._named_by_manifests([handles[place] for place in missing])
        except UnknownOutcomeError as error:
            # UNKNOWN says better what is wrong, for example which right is missing.
            retry = Finished(outcome=Outcome.RETRY, reason=error.message)
            return {place: retry for place, answer in missing.items() if answer.outcome is Outcome.LOST}
        except CorruptRecordError as error:
            return dict.fromkeys(missing, Finished(outcome=Outcome.UNKNOWN, reason=error.message))
        return {place: _TAKEN_AWAY for place in missing if handles[place].transaction in whole}

    def _named_by_manifests(self, handles: Sequence[Handle]) -> Collection[tuple[tuple[str, str | int], ...]]:
        """The transactions that the manifests of these handles' batches name."""
        names = [read_handle(handle).name for handle in handles]
        asked = {(name.prefix, name.query, name.batch) for name in names}
        return {
            transaction_fields(fields)
            for one in (manifests.list_manifests(self._store) if asked and self._manifest else ())
            if any(
                (one.prefix, one.query) == (prefix, query) and one.first <= batch <= one.last
                for prefix, query, batch in asked
            )
            for manifest in manifests.read(self._store, one)
            for fields in manifest.transactions
        }

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """See `SinkCommitter.abort`."""
        answers, open_files = self._open(handles)
        flat = [(place, one) for place, files in open_files.items() for one in files]
        for place, found in self._grouped(flat, self._store.discard([one for _, one in flat]) if flat else []).items():
            answers[place] = of_abort(found)
        return [answers[place] for place in range(len(handles))]

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """See `SinkCommitter.list_lingering`. Runs whose facts hold no prefix held nothing back.

        Raises:
            UnknownOutcomeError: if the place cannot be asked now.
        """
        claimed = claimed_by(owners)
        found: dict[TransactionName, list[Fields]] = {}
        for held in self._store.list_staged() if claimed else ():
            if held.name.token in claimed.get((held.name.prefix, held.name.query), ()):
                found.setdefault(held.name, []).append(held.fields)
        return [self._lingering(name, files) for name, files in found.items()]

    def _lingering(self, name: TransactionName, files: Sequence[Fields]) -> Handle:
        text = json.dumps([dict(one) for one in files], separators=(",", ":"), sort_keys=True)
        return Handle(
            sink=self._name,
            slot=name.slot,
            transaction=transaction_fields({"name": str(name), "files": text, "begun_ms": 0}),
        )

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """See `SinkCommitter.conclude`. Writes the batch's manifest, and now and then tidies up behind older ones."""
        listed = {handle: read_handle(handle) for handle in handles if handle.transaction}
        if not listed:
            return
        for doubt in self._doubts(one.folder for one in listed.values()).values():
            raise UnknownOutcomeError(doubt.reason)
        names = [one.name for one in listed.values()]
        newest = max(names, key=lambda name: name.token)
        if self._manifest:
            files = {handle: self._files_of(one) for handle, one in listed.items()}
            manifests.write(
                self._store, manifests.of_batch(self._name, newest.prefix, newest.query, newest.token, batch, files)
            )
        # Not at every hundredth batch: those may all be without rows.
        if batch >= max(self._tidy_from, KEPT_BATCHES):
            self._tidy(newest.prefix, newest.query, batch - KEPT_BATCHES)
            self._tidy_from = batch + TIDY_EVERY

    def _files_of(self, listed: Listed) -> Sequence[Fields]:
        files = self._resolve(listed)
        if isinstance(files, Finished):
            raise UnknownOutcomeError(f"The manifest could not be written: {files.reason}")
        return files

    def _tidy(self, prefix: str, query: str, before: int) -> None:
        old = [
            f"{LISTS}/{text}"
            for text in self._store.list_names(LISTS)
            if (name := TransactionName.parse(text)) is not None
            and (name.prefix, name.query) == (prefix, query)
            and name.batch < before
        ]
        if old:
            self._store.delete(old)
        if self._manifest:
            manifests.merge(self._store, prefix, query, before)

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        """See `SinkCommitter.list_traces`. From the newest manifests, which name their commits."""
        prefix = facts.get("prefix")
        if prefix is None or not self._manifest:
            return ()
        names = [
            name
            for name in manifests.list_manifests(self._store)
            if (name.prefix, name.query) == (prefix, query) and name.token is not None
        ]
        names.sort(key=lambda name: name.last, reverse=True)
        newest = {name.token: name for name in reversed(names)}
        read = {name.text: name for name in (*names[:TRACED_BATCHES], *newest.values())}
        return [trace for name in read.values() for one in manifests.read(self._store, name) for trace in _traces(one)]

    def other_queries(self, query: str, facts: Facts) -> Sequence[str]:
        """See `SinkCommitter.other_queries`: those of the folder's manifests."""
        if not self._manifest:
            return ()
        found = {name.query for name in manifests.list_manifests(self._store) if name.prefix == facts.get("prefix")}
        return sorted(found - {query})

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """See `SinkCommitter.missing`: what no manifest names. Files themselves may have been taken away by readers."""
        if not (self._manifest and self._store.keeps_manifests):
            return ()
        whole, found = self._named_by_manifests(handles), []
        merged = [one for one in manifests.list_manifests(self._store) if one.token is None]
        for handle in handles:
            name = read_handle(handle).name
            # Merged ones do not name transactions any more.
            old = any((one.prefix, one.query) == (name.prefix, name.query) and name.batch <= one.last for one in merged)
            if handle.transaction not in whole and not old:
                found.append(handle)
        return found

    def close(self) -> None:
        """Frees connections."""
        self._store.close()

    def _open(self, handles: Sequence[Handle]) -> tuple[dict[int, Finished], dict[int, Sequence[Fields]]]:
        """What is answered already, and the files of the other handles, each by the handle's place."""
        answers: dict[int, Finished] = {}
        files: dict[int, Sequence[Fields]] = {}
        for place, handle in enumerate(handles):
            found = self._read(handle) if handle.transaction else _NOTHING
            if isinstance(found, Finished):
                answers[place] = found
            else:
                files[place] = found
        return answers, files

    def _read(self, handle: Handle) -> Sequence[Fields] | Finished:
        try:
            return self._resolve(read_handle(handle))
        except ValueError as error:
            return Finished(outcome=Outcome.UNKNOWN, reason=f"The handle cannot be read: {error}.")

    def _resolve(self, listed: Listed) -> Sequence[Fields] | Finished:
        if listed.files is not None:
            return listed.files
        try:
            content = self._store.get(listed.list_path)
        except UnknownOutcomeError as error:
            return Finished(outcome=Outcome.RETRY, reason=error.message)
        if content is None:
            reason = f"{listed.list_path}: the list of the transaction's files is gone, and nobody knows what they are."
            return Finished(outcome=Outcome.UNKNOWN, reason=reason)
        files = read_list(content, listed.list_checksum)
        if files is None:
            reason = f"{listed.list_path}: the list of the transaction's files has another checksum than the handle."
            return Finished(outcome=Outcome.UNKNOWN, reason=reason)
        return files

    def _look(self, answers: dict[int, Finished], open_files: Mapping[int, Sequence[Fields]]) -> None:
        """Where a transaction has several files, none is published unless all can be."""
        several = {place: files for place, files in open_files.items() if len(files) > 1}
        try:
            found = self._standings(several)
        except UnknownOutcomeError as error:
            answers.update(dict.fromkeys(several, Finished(outcome=Outcome.RETRY, reason=error.message)))
            return
        for place, standings in found.items():
            answer = before_publish(several[place], standings)
            if answer is not None:
                answers[place] = answer

    def _standings(self, files: Mapping[int, Sequence[Fields]]) -> Mapping[int, Sequence[FileState]]:
        flat = [(place, one) for place, some in files.items() for one in some]
        return self._grouped(flat, self._store.look([one for _, one in flat]) if flat else [])

    def _doubts(self, folders: Iterable[str]) -> Mapping[str, Finished]:
        """What is to be said of those folders that are not the place that is seen now."""
        asked = {folder: self._store.doubt(folder) for folder in set(folders) - {""}}
        return {folder: doubt for folder, doubt in asked.items() if doubt is not None}

    def _make_final(self, handles: Sequence[Handle], lost: Mapping[int, Sequence[Fields]]) -> Mapping[int, Finished]:
        """What is answered in place of LOST where that is not sure, and makes sure that what is lost stays so.

        Once the place is known to be the right one it is looked at again: its disk may just have been mounted. And
        another driver may have looked before the loss, and be about to publish the transaction's other files, whose
        rows are to be written again under other names. So nobody may be able to publish them any more, and the last
        look comes after that: a store may be at work on what it cannot give up any more.
        """
        folders = {place: read_handle(handles[place]).folder for place in lost}
        doubts = self._doubts(folders.values())
        answers = {place: doubts[folder] for place, folder in folders.items() if folder in doubts}
        answers |= self._not_lost(_without(lost, answers))
        # Also what is not held back: a discard that was killed may have left half of one.
        flat = [(place, one) for place, files in _without(lost, answers).items() for one in files]
        for place, found in self._grouped(flat, self._store.discard([one for _, one in flat])).items():
            given_up = of_abort(found)
            if given_up.outcome in {Outcome.UNKNOWN, Outcome.RETRY}:
                answers[place] = given_up
        return answers | self._not_lost(_without(lost, answers))

    def _not_lost(self, lost: Mapping[int, Sequence[Fields]]) -> dict[int, Finished]:
        """What is answered where another look does not say LOST again."""
        try:
            found = self._standings(lost)
        except UnknownOutcomeError as error:
            return dict.fromkeys(lost, Finished(outcome=Outcome.RETRY, reason=error.message))
        answers: dict[int, Finished] = {}
        for place, standings in found.items():
            again = before_publish(lost[place], standings)
            if again is None or again.outcome not in _MISSING:
                reason = f"{lost[place][0]['path']}: It was missing, and at the next look it was not."
                again = Finished(outcome=Outcome.RETRY, reason=reason)
            if again.outcome is not Outcome.LOST:
                answers[place] = again
        return answers

    @staticmethod
    def _grouped(flat: Sequence[tuple[int, Fields]], answers: Sequence[Answer]) -> Mapping[int, Sequence[Answer]]:
        grouped: dict[int, list[Answer]] = {}
        for (place, _), answer in zip(flat, answers, strict=True):
            grouped.setdefault(place, []).append(answer)
        return grouped


def _without(files: Mapping[int, Sequence[Fields]], answers: Mapping[int, Finished]) -> dict[int, Sequence[Fields]]:
    return {place: some for place, some in files.items() if place not in answers}


def _traces(manifest: Manifest) -> list[Trace]:
    return [
        Trace(
            token=name.token,
            committed=transaction_fields(fields),
            begun_ms=int(fields["begun_ms"]),
        )
        for fields in manifest.transactions
        if (name := TransactionName.parse(str(fields["name"]))) is not None
    ]
