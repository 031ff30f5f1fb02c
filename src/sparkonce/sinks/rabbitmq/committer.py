"""The driver half of the stream sink: publishes decided rows, and compares the stream with what it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from sparkonce.errors import OutageError, UnknownOutcomeError
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import Facts
from sparkonce.sinks.rabbitmq.connection import StreamRefusedError
from sparkonce.sinks.rabbitmq.ids import Ids
from sparkonce.sinks.rabbitmq.publishing import Publisher, StreamApplication, ahead, why_behind
from sparkonce.sinks.write_ahead.application import CallSettings
from sparkonce.sinks.write_ahead.committer import Answers, WriteAheadCommitter
from sparkonce.sinks.write_ahead.entry import Entry
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder

_NEXT = "See that the server can be reached and has the stream, then start the query again."


class StreamCommitter(WriteAheadCommitter):
    """Finishes transactions whose rows go to a stream.

    Args:
        folder: The sink's folder.
        sink: The sink's name.
        prefix: The sink's name as the names of its files begin with it.
        settings: The settings of the calls.
        publisher_of: Makes the publisher of a query.
    """

    def __init__(
        self,
        folder: WriteAheadFolder,
        sink: str,
        prefix: str,
        settings: CallSettings,
        publisher_of: Callable[[str], Publisher],
    ) -> None:
        self._make_publisher = publisher_of
        self._publishers: dict[str, Publisher] = {}
        application = StreamApplication(folder, sink, settings, self._publisher_of)
        super().__init__(folder, sink, prefix, settings, application)

    def commit_all(self, wanted: Mapping[TransactionName, Handle]) -> Answers:
        """Learns also what an earlier run has published: another sink may be healed before the batch is concluded."""
        answers = super().commit_all(wanted)
        found = [name for name, one in answers.items() if one.outcome is Outcome.ALREADY_COMMITTED]
        try:
            self._learn([wanted[name] for name in found])
        except UnknownOutcomeError as error:
            answers |= dict.fromkeys(found, Finished(outcome=Outcome.RETRY, reason=error.message))
        return answers

    def before_decision(self, facts: Facts) -> str:
        """Sees that the stream has exactly what was published. See `SinkCommitter.before_decision`.

        Raises:
            OutageError: if the server cannot be asked now.
        """
        try:
            publisher = self._publisher_of(facts["query"])
            there = publisher.sequence()
        except OSError as error:
            raise OutageError(f"Sink {self._sink!r}: the stream cannot be asked: {error}", next_step=_NEXT) from error
        except StreamRefusedError as error:
            return str(error)
        known = publisher.newest
        return ahead(there) if known is not None and there > known else why_behind(known, there)

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """Learns which rows are in the stream, also those that an earlier run has published."""
        self._learn(handles)
        super().conclude(batch, handles)

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """Lists those whose rows have ids above the highest in the stream, or were never published.

        See `SinkCommitter.missing`.
        """
        ids, begun = self._learn(handles)
        try:
            there = {query: self._publisher_of(query).sequence() for query in {name.query for name in ids}}
        except (OSError, StreamRefusedError) as error:
            raise UnknownOutcomeError(
                f"Sink {self._sink!r}: the stream cannot be asked: {error}", next_step=_NEXT
            ) from error
        gone = {name for name, one in ids.items() if one.last > there[name.query]}
        names = {name: handle for handle in handles if (name := self._name(handle)) is not None}
        return [one for name, one in names.items() if name in gone or not (name in begun or self._is_forgotten(name))]

    def _is_forgotten(self, name: TransactionName) -> bool:
        try:
            return name.batch <= self._folder.ledger.forgotten_up_to(name.query)
        except OSError as error:
            raise self._unreadable(error) from error

    def close(self) -> None:
        """Closes the connection."""
        super().close()
        for publisher in self._publishers.values():
            publisher.close()

    def _publisher_of(self, query: str) -> Publisher:
        if query not in self._publishers:
            self._publishers[query] = self._make_publisher(query)
        return self._publishers[query]

    def _learn(self, handles: Sequence[Handle]) -> tuple[Mapping[TransactionName, Ids], Set[TransactionName]]:
        """Notes the highest id of the groups that these handles were published in.

        Returns:
            The ids of the groups that are known as a whole, and everything that a commit has begun with.
        """
        rows = {name: handle.rows for handle in handles if (name := self._name(handle)) is not None}
        found: dict[TransactionName, Ids] = {}
        begun: set[TransactionName] = set()
        try:
            for query, batch in {(name.query, name.batch) for name in rows}:
                for number, group in enumerate(self._folder.ledger.begun(query, batch)):
                    names = [entry.name for entry in group]
                    begun.update(names)
                    if names and all(name in rows for name in names):
                        found |= dict.fromkeys(names, Ids.of(batch, number, sum(rows[name] for name in names)))
        except OSError as error:
            raise self._unreadable(error) from error
        for name, ids in found.items():
            publisher = self._publisher_of(name.query)
            publisher.newest = max(ids.last, publisher.newest or 0)
        return found, begun

    def _name(self, handle: Handle) -> TransactionName | None:
        entry = Entry.of_handle(handle)
        return entry.name if entry is not None and entry.name.prefix == self._prefix else None
