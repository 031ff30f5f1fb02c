"""The driver side of the stream sink: publishes decided rows, and compares the stream with the recorded ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set

from sparkonce.errors import OutageError, UnknownOutcomeError
from sparkonce.sink import Facts, Finished, Handle, Outcome, TransactionName
from sparkonce.write_ahead import Answers, CallSettings, Entry, WriteAheadCommitter, WriteAheadFolder
from sparkonce_rabbitmq.sinks.connection import StreamRefusedError
from sparkonce_rabbitmq.sinks.publishing import Ids, Publisher, StreamApplication, ahead, why_behind
from sparkonce_rabbitmq.sinks.routing import total

_IdsByStream = dict[str, Ids]
_NEXT = "Check that the server can be reached and has the stream, then start the query again."


class StreamCommitter(WriteAheadCommitter):
    """Finishes transactions whose rows go to a stream.

    Args:
        folder: The sink's folder.
        sink: The sink's name.
        prefix: The prefix of the sink's file names.
        settings: The settings of the calls.
        stream: The stream for rows that name no partition.
        publisher_of: Creates a query's publisher for a stream.
    """

    def __init__(
        self,
        folder: WriteAheadFolder,
        sink: str,
        prefix: str,
        settings: CallSettings,
        stream: str,
        publisher_of: Callable[[str, str], Publisher],
    ) -> None:
        self._stream, self._make_publisher = stream, publisher_of
        self._publishers: dict[tuple[str, str], Publisher] = {}
        application = StreamApplication(folder, sink, settings, stream, self._publisher_of)
        super().__init__(folder, sink, prefix, settings, application)

    def commit_all(self, wanted: Mapping[TransactionName, Handle]) -> Answers:
        """Also records rows that an earlier run has published, in case another sink is healed before `conclude`."""
        answers = super().commit_all(wanted)
        found = [name for name, one in answers.items() if one.outcome is Outcome.ALREADY_COMMITTED]
        try:
            self._learn([wanted[name] for name in found])
        except UnknownOutcomeError as error:
            answers |= dict.fromkeys(found, Finished(outcome=Outcome.RETRY, reason=error.message))
        return answers

    def before_decision(self, facts: Facts) -> str:
        """Checks that each stream contains exactly the published rows; see `SinkCommitter.before_decision`."""
        for stream in json.loads(facts.get("partitions", "[]")) or [self._stream]:
            publisher = self._publisher_of(facts["query"], stream)
            try:
                there = publisher.sequence()
            except OSError as error:
                raise OutageError(
                    f"Sink {self._sink!r}: the stream {stream!r} cannot be queried: {error}", next_step=_NEXT
                ) from error
            except StreamRefusedError as error:
                return str(error)
            known = publisher.newest
            reason = ahead(there) if known is not None and there > known else why_behind(known, there)
            if reason:
                return reason
        return ""

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """Records which rows are in the stream, including those published by an earlier run."""
        self._learn(handles)
        super().conclude(batch, handles)

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """Lists handles whose rows were never published, or have higher ids than the highest in the stream."""
        ids, begun = self._learn(handles)
        asked = {(name.query, stream) for name, streams in ids.items() for stream in streams}
        try:
            there = {one: self._publisher_of(*one).sequence() for one in asked}
        except (OSError, StreamRefusedError) as error:
            raise UnknownOutcomeError(
                f"Sink {self._sink!r}: the stream cannot be queried: {error}", next_step=_NEXT
            ) from error
        gone = {
            name
            for name, streams in ids.items()
            if any(one.last > there[name.query, stream] for stream, one in streams.items())
        }
        names = {name: handle for handle in handles if (name := self._name(handle)) is not None}
        return [one for name, one in names.items() if name in gone or not (name in begun or self._is_forgotten(name))]

    def _is_forgotten(self, name: TransactionName) -> bool:
        try:
            return name.batch <= self._folder.ledger.forgotten_up_to(name.query)
        except OSError as error:
            raise self._unreadable(error) from error

    def close(self) -> None:
        super().close()
        for publisher in self._publishers.values():
            publisher.close()

    def _publisher_of(self, query: str, stream: str) -> Publisher:
        if (query, stream) not in self._publishers:
            self._publishers[query, stream] = self._make_publisher(query, stream)
        return self._publishers[query, stream]

    def _learn(self, handles: Sequence[Handle]) -> tuple[Mapping[TransactionName, _IdsByStream], Set[TransactionName]]:
        """Records the highest id in the groups that these handles were published in.

        Returns the ids of completely known groups, by stream, and the names of transactions whose commit has started.
        """
        rows = {name: handle.rows for handle in handles if (name := self._name(handle)) is not None}
        found: dict[TransactionName, _IdsByStream] = {}
        begun: set[TransactionName] = set()
        try:
            for query, batch in {(name.query, name.batch) for name in rows}:
                for number, group in enumerate(self._folder.ledger.begun(query, batch)):
                    names = [entry.name for entry in group]
                    begun.update(names)
                    if names and all(name in rows for name in names):
                        counts = total(entry.parts for entry in group) or {
                            self._stream: sum(rows[name] for name in names)
                        }
                        ids = {stream: Ids.of(batch, number, count) for stream, count in counts.items() if count}
                        found |= dict.fromkeys(names, ids)
        except OSError as error:
            raise self._unreadable(error) from error
        for name, streams in found.items():
            for stream, one in streams.items():
                publisher = self._publisher_of(name.query, stream)
                publisher.newest = max(one.last, publisher.newest or 0)
        return found, begun

    def _name(self, handle: Handle) -> TransactionName | None:
        entry = Entry.of_handle(handle)
        return entry.name if entry is not None and entry.name.prefix == self._prefix else None
