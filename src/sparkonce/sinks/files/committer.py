"""The driver half of the files sink: publishes and discards files, lists staged ones, and writes manifests."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from sparkonce.errors import CorruptRecordError, UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce.protocol.horizon import SINKS_KEEP_BATCHES
from sparkonce.protocol.ownership import TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner
from sparkonce.sinks._shared.committing import FOREIGN, Claims, Every, HandleCommitter
from sparkonce.sinks.files import manifests
from sparkonce.sinks.files.manifests import Manifest, ManifestName
from sparkonce.sinks.files.store import (
    FIELDS,
    LISTS,
    Fields,
    FileStore,
    Listed,
    before_publish,
    of_abort,
    of_commit,
    read_handle,
    read_list,
)

TIDY_EVERY = 100
"""The number of batches after which a run tidies up again."""

KEPT_BATCHES = SINKS_KEEP_BATCHES
"""The number of newest batches that keep their file lists and their own manifests."""

TRACED_BATCHES = 10
"""The number of newest batches whose manifests are read at each start, in addition to the newest one of each run."""

_MISSING = frozenset({Outcome.LOST, Outcome.UNKNOWN})
_TAKEN_AWAY = Finished(
    outcome=Outcome.ALREADY_COMMITTED,
    reason="Some of its files are missing, but its batch's manifest names them: somebody has removed files since.",
)

Answer = TypeVar("Answer")
Answers = dict[TransactionName, Finished]
Files = Mapping[TransactionName, Sequence[Fields]]
"""The files of each transaction."""


class FilesCommitter(HandleCommitter[TransactionName]):
    """Publishes and discards the files named by the handles. Works from any process."""

    handle_fields = FIELDS

    def __init__(self, store: FileStore, name: str, *, manifest: bool) -> None:
        self._store = store
        self._name = name
        self._manifest = manifest
        self._tidying = Every(TIDY_EVERY)

    def close(self) -> None:
        self._store.close()

    # --- commit -----------------------------------------------------------------------------------------------------

    def transaction_of(self, handle: Handle) -> TransactionName | Finished:
        try:
            return read_handle(handle).name
        except ValueError:
            return FOREIGN

    def commit_all(self, wanted: Mapping[TransactionName, Handle]) -> Answers:
        """See `HandleCommitter.commit_all`. Sends all files of all handles to the store in one call."""
        answers, opened = self._open(wanted)
        answers.update(self._before_publish(opened))
        for name, found in _asked(self._store.publish, _without(opened, answers)).items():
            answers[name] = of_commit(found)
        lost = {name: files for name, files in opened.items() if answers[name].outcome is Outcome.LOST}
        answers.update(self._make_final(wanted, lost))
        answers.update(self._ask_manifests({name: answers[name] for name in opened}, wanted))
        return answers

    def _open(self, wanted: Mapping[TransactionName, Handle]) -> tuple[Answers, Files]:
        """Returns the files of each transaction, and the answers for those whose files are not known."""
        found = {name: self._resolve(read_handle(handle)) for name, handle in wanted.items()}
        answers = {name: one for name, one in found.items() if isinstance(one, Finished)}
        return answers, {name: one for name, one in found.items() if not isinstance(one, Finished)}

    def _resolve(self, listed: Listed) -> Sequence[Fields] | Finished:
        if listed.files is not None:
            return listed.files
        try:
            content = self._store.get(listed.list_path)
        except UnknownOutcomeError as error:
            return Finished(outcome=Outcome.RETRY, reason=error.message)
        if content is None:
            reason = f"{listed.list_path}: the list of the transaction's files is gone, so the files are unknown."
            return Finished(outcome=Outcome.UNKNOWN, reason=reason)
        files = read_list(content, listed.list_checksum)
        if files is None:
            reason = (
                f"{listed.list_path}: the list of the transaction's files has a different checksum from the handle's."
            )
            return Finished(outcome=Outcome.UNKNOWN, reason=reason)
        return files

    def _before_publish(self, opened: Files) -> Answers:
        """Returns the answers for transactions of several files, one of which cannot be published."""
        several = {name: files for name, files in opened.items() if len(files) > 1}
        try:
            found = _asked(self._store.states, several)
        except UnknownOutcomeError as error:
            return dict.fromkeys(several, Finished(outcome=Outcome.RETRY, reason=error.message))
        answers = {name: before_publish(several[name], states) for name, states in found.items()}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def _make_final(self, wanted: Mapping[TransactionName, Handle], lost: Files) -> Answers:
        """Discards what is left of lost transactions. Returns answers for those that may not be lost."""
        folders = {name: read_handle(wanted[name]).folder for name in lost}
        doubts = self._doubts(folders.values())
        answers = {name: doubts[folder] for name, folder in folders.items() if folder in doubts}
        # The disk may not have been mounted during the first check. Now that the folder is the right one, check again.
        answers |= self._not_lost(_without(lost, answers))
        # Another driver may have checked the transaction before the loss, and be about to publish its other files.
        # Discard all files of the transaction, since its rows will be written again. Include files that do not appear
        # to be staged, because an interrupted discard may have left parts of them behind.
        for name, found in _asked(self._store.discard, _without(lost, answers)).items():
            given_up = of_abort(found)
            if given_up.outcome in {Outcome.UNKNOWN, Outcome.RETRY}:
                answers[name] = given_up
        # Check last: the store may still be processing a file that it could not discard.
        return answers | self._not_lost(_without(lost, answers))

    def _not_lost(self, lost: Files) -> Answers:
        """Checks transactions again, and returns the answers for those that are not lost after all."""
        try:
            found = _asked(self._store.states, lost)
        except UnknownOutcomeError as error:
            return dict.fromkeys(lost, Finished(outcome=Outcome.RETRY, reason=error.message))
        answers: Answers = {}
        for name, states in found.items():
            again = before_publish(lost[name], states)
            if again is None or again.outcome not in _MISSING:
                reason = f"{lost[name][0]['path']}: It was missing, but was there when checked again."
                again = Finished(outcome=Outcome.RETRY, reason=reason)
            if again.outcome is not Outcome.LOST:
                answers[name] = again
        return answers

    def _doubts(self, folders: Iterable[str]) -> Mapping[str, Finished]:
        """Returns an answer for each of these folders that is no longer the store's folder."""
        asked = {folder: self._store.doubt(folder) for folder in set(folders) - {""}}
        return {folder: doubt for folder, doubt in asked.items() if doubt is not None}

    def _ask_manifests(self, answers: Answers, wanted: Mapping[TransactionName, Handle]) -> Answers:
        """Returns answers for missing transactions that a manifest lists: readers may delete files they have read."""
        missing = {name: answer for name, answer in answers.items() if answer.outcome in _MISSING}
        try:
            whole = self._named_by_manifests(missing)
        except UnknownOutcomeError as error:
            # Turn only LOST into RETRY. UNKNOWN already names the problem, such as a missing permission.
            retry = Finished(outcome=Outcome.RETRY, reason=error.message)
            return {name: retry for name, answer in missing.items() if answer.outcome is Outcome.LOST}
        except CorruptRecordError as error:
            return dict.fromkeys(missing, Finished(outcome=Outcome.UNKNOWN, reason=error.message))
        return {name: _TAKEN_AWAY for name in missing if wanted[name].transaction in whole}

    def _named_by_manifests(self, names: Iterable[TransactionName]) -> Collection[tuple[tuple[str, str | int], ...]]:
        """Returns the transactions listed in the manifests of these transactions' batches."""
        batches = {(name.prefix, name.query, name.batch) for name in names}
        return {
            transaction_fields(fields)
            for one in (manifests.list_manifests(self._store) if batches and self._manifest else ())
            if any(_is_of(one, prefix, query) and one.first <= batch <= one.last for prefix, query, batch in batches)
            for manifest in manifests.read(self._store, one)
            for fields in manifest.transactions
        }

    # --- abort and sweep --------------------------------------------------------------------------------------------

    def abort_all(self, wanted: Mapping[TransactionName, Handle]) -> Answers:
        answers, opened = self._open(wanted)
        for name, found in _asked(self._store.discard, opened).items():
            answers[name] = of_abort(found)
        return answers

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        claims = Claims(owners)
        found: dict[TransactionName, list[Fields]] = {}
        for staged in self._store.list_staged() if claims else ():
            if claims.has(staged.name):
                found.setdefault(staged.name, []).append(staged.fields)
        return [self._lingering(name, files) for name, files in found.items()]

    def _lingering(self, name: TransactionName, files: Sequence[Fields]) -> Handle:
        text = json.dumps([dict(one) for one in files], separators=(",", ":"), sort_keys=True)
        return Handle(
            sink=self._name,
            slot=name.slot,
            transaction=transaction_fields({"name": str(name), "files": text, "begun_ms": 0}),
        )

    # --- whole batches ----------------------------------------------------------------------------------------------

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """See `SinkCommitter.conclude`. Writes the batch's manifest, and periodically cleans up after older batches."""
        listed = {handle: read_handle(handle) for handle in handles if handle.transaction}
        if not listed:
            return
        for doubt in self._doubts(one.folder for one in listed.values()).values():
            raise UnknownOutcomeError(doubt.reason)
        newest = max((one.name for one in listed.values()), key=lambda name: name.token)
        if self._manifest:
            files = {handle: self._files_of(one) for handle, one in listed.items()}
            manifests.write(
                self._store, manifests.of_batch(self._name, newest.prefix, newest.query, newest.token, batch, files)
            )
        if batch >= KEPT_BATCHES and self._tidying.is_due(batch):
            self._tidy(newest.prefix, newest.query, batch - KEPT_BATCHES)
            self._tidying.done(batch)

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
        """See `SinkCommitter.list_traces`. Reads the newest manifests, which list committed transactions."""
        prefix = facts.get("prefix")
        if prefix is None or not self._manifest:
            return ()
        names = [
            name
            for name in manifests.list_manifests(self._store)
            if _is_of(name, prefix, query) and name.token is not None
        ]
        names.sort(key=lambda name: name.last, reverse=True)
        newest = {name.token: name for name in reversed(names)}
        read = {name.text: name for name in (*names[:TRACED_BATCHES], *newest.values())}
        return [trace for name in read.values() for one in manifests.read(self._store, name) for trace in _traces(one)]

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """Lists transactions that are in no manifest. Missing files prove nothing: readers may have moved them."""
        if not (self._manifest and self._store.keeps_manifests):
            return ()
        names = {handle: read_handle(handle).name for handle in handles}
        whole = self._named_by_manifests(names.values())
        # Merged manifests no longer list transactions.
        merged = [one for one in manifests.list_manifests(self._store) if one.token is None]
        return [
            handle
            for handle, name in names.items()
            if handle.transaction not in whole
            and not any(_is_of(one, name.prefix, name.query) and name.batch <= one.last for one in merged)
        ]


def _asked(ask: Callable[[Sequence[Fields]], Sequence[Answer]], files: Files) -> dict[TransactionName, list[Answer]]:
    flat = [(name, one) for name, some in files.items() for one in some]
    grouped: dict[TransactionName, list[Answer]] = {}
    for (name, _), answer in zip(flat, ask([one for _, one in flat]) if flat else (), strict=True):
        grouped.setdefault(name, []).append(answer)
    return grouped


def _without(files: Files, answers: Answers) -> Files:
    return {name: some for name, some in files.items() if name not in answers}


def _is_of(manifest: ManifestName, prefix: str, query: str) -> bool:
    return (manifest.prefix, manifest.query) == (prefix, query)


def _traces(manifest: Manifest) -> list[Trace]:
    return [
        Trace(token=name.token, committed=transaction_fields(fields), batch=name.batch)
        for fields in manifest.transactions
        if (name := TransactionName.parse(str(fields["name"]))) is not None
    ]
