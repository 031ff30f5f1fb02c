"""Wrong rules of the sinks whose rows wait in the checkpoint: the simulation has to find each of these, too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pika

from simulation.config import STAGED
from simulation.engine import UNDER_WAY
from simulation.mutants import Mutant
from sparkonce.protocol.outcomes import Finished
from sparkonce.sinks.rabbitmq.committer import StreamCommitter
from sparkonce.sinks.rabbitmq.connection import StreamRefusedError
from sparkonce.sinks.rabbitmq.messages import FRAME_OVERHEAD_BYTES, frames
from sparkonce.sinks.rabbitmq.publishing import Publisher
from sparkonce.sinks.rabbitmq.queue_publisher import QueuePublish, _Publishing
from sparkonce.sinks.write_ahead.application import Application
from sparkonce.sinks.write_ahead.committer import WriteAheadCommitter
from sparkonce.spark.pravega.application import COMMITTED, PravegaApplication
from sparkonce.spark.pravega.notes import TransactionNotes
from sparkonce.spark.tables.committer import TableApplication, TableCommitter
from sparkonce.spark.tables.delta import _application
from sparkonce.spark.tables.iceberg import _MAIN, _IcebergTable

# --- rows that wait ---------------------------------------------------------------------------------------------------


def _deletes_first(self: Application, unit: Any, found: Any) -> Finished:
    self._folder.delete_rows(unit.entries)
    return _NOTE(self, unit, found)


_NOTE = Application._note


def _notes_first(self: Application, unit: Any) -> Finished:
    self._folder.note_done(unit.entries)
    return _APPLY(self, unit)


_APPLY = Application._apply


# --- streams ----------------------------------------------------------------------------------------------------------


def _begins_behind_the_highest(self: Publisher, rows: Any, first_id: int, skip: int = 0) -> None:
    there = self.sequence()
    _PUBLISH(self, rows, first_id, max(0, there - first_id + 1))


_PUBLISH = Publisher.publish


def _notes_what_it_sends(self: Publisher, connection: Any, messages: Any, first_id: int) -> None:
    for frame in frames(messages, first_id, connection.frame_max - FRAME_OVERHEAD_BYTES):
        self.newest = max(self.newest or 0, frame.first_id + frame.count - 1)
        connection.publish(frame)


def _believes_its_notes(self: Publisher) -> int:
    return self.newest or _SEQUENCE(self)


_SEQUENCE = Publisher.sequence


def _sends_on(self: Publisher, connection: Any, messages: Any, first_id: int) -> None:
    failed: list[Exception] = []
    for frame in frames(messages, first_id, connection.frame_max - FRAME_OVERHEAD_BYTES):
        try:
            connection.publish(frame)
        except StreamRefusedError as error:  # noqa: PERF203 - that it continues is the mistake
            failed.append(error)
    if failed:
        raise failed[0]


def _draws_ids(self: Publisher, rows: Any, first_id: int, skip: int = 0) -> None:
    drawn = self.__dict__.setdefault("drawn", UNDER_WAY[0].nonce())
    _PUBLISH(self, rows, first_id + 100 * drawn, skip)


def _with_a_name_of_its_own(self: Publisher, settings: Any, stream: str, name: str) -> None:
    _MAKE_PUBLISHER(self, settings, stream, f"{name}.{UNDER_WAY[0].nonce()}")


_MAKE_PUBLISHER = Publisher.__init__


# --- queues -----------------------------------------------------------------------------------------------------------


def _forgets_what_was_refused(self: _Publishing, frame: Any) -> None:
    self._tags.discard(frame.method.delivery_tag)
    if isinstance(frame.method, pika.spec.Basic.Nack):
        self._stop(ConnectionError("the server did not take a message"))
    elif not self._tags:
        self._send()


def _takes_a_break_for_an_end(self: _Publishing, error: Any) -> None:
    self._connection.ioloop.stop()


def _ids_of_each_attempt(self: QueuePublish, rows: Any, token: Any) -> Any:
    attempt = UNDER_WAY[0].nonce()
    for key, body, properties in _MESSAGES(self, rows, token):
        properties.headers = {name: f"{made}-{attempt}" for name, made in properties.headers.items()}
        yield key, body, properties


_MESSAGES = QueuePublish.messages


# --- Pravega ----------------------------------------------------------------------------------------------------------


def _leaves_what_is_open(self: PravegaApplication, transaction: str, token: Any) -> bool:
    with self._stream.writer() as writer:
        return self._stream.settled(writer, transaction) == COMMITTED


# --- tables -----------------------------------------------------------------------------------------------------------


def _replaces(self: _IcebergTable, branch: str, unit: Any, label: Any, alone: bool) -> None:
    self._load().manageSnapshots().replaceBranch(_MAIN, branch).set(f"sparkonce.{unit.name}", label.to_text()).commit()


def _of_each_attempt(unit: Any) -> str:
    return f"{_application(unit)}.{UNDER_WAY[0].nonce()}"


_mutant = partial(Mutant, family="staged")

_TABLES = ("delta", "iceberg")
_NOT_ASKED = (TableApplication, "is_applied", lambda *_: False)

STAGED_MUTANTS: Sequence[Mutant] = (
    _mutant(
        name="rows that wait are deleted before it is noted that they are applied",
        kinds=STAGED,
        patches=((Application, "_note", _deletes_first),),
    ),
    _mutant(
        name="rows that wait are noted as applied before they are",
        kinds=STAGED,
        patches=((Application, "_apply", _notes_first),),
    ),
    _mutant(
        name="rows that wait: a store that is away ends a commit",
        kinds=STAGED,
        patches=((Application, "apply", Application._apply),),
    ),
    _mutant(
        name="RabbitMQ stream: what an earlier run has published is not learned when it is committed again",
        kinds=("rabbitmq-stream",),
        patches=((StreamCommitter, "commit_all", WriteAheadCommitter.commit_all),),
    ),
    _mutant(
        name="RabbitMQ stream: publishing begins behind the highest id, which may not be safe",
        kinds=("rabbitmq-stream",),
        patches=((Publisher, "publish", _begins_behind_the_highest),),
    ),
    _mutant(
        name="RabbitMQ stream: a publisher believes what it has sent, instead of asking",
        kinds=("rabbitmq-stream",),
        patches=((Publisher, "_send", _notes_what_it_sends), (Publisher, "sequence", _believes_its_notes)),
    ),
    _mutant(
        name="RabbitMQ stream: the next frame is sent although the last one was refused",
        kinds=("rabbitmq-stream",),
        patches=((Publisher, "_send", _sends_on),),
    ),
    _mutant(
        name="RabbitMQ stream: a publisher draws its ids",
        kinds=("rabbitmq-stream",),
        patches=((Publisher, "publish", _draws_ids),),
    ),
    _mutant(
        name="RabbitMQ stream: each driver publishes under a name of its own",
        kinds=("rabbitmq-stream",),
        patches=((Publisher, "__init__", _with_a_name_of_its_own),),
    ),
    _mutant(
        name="RabbitMQ queue: a message that is refused last is taken for confirmed",
        kinds=("rabbitmq-queue",),
        patches=((_Publishing, "_answered", _forgets_what_was_refused),),
    ),
    _mutant(
        name="RabbitMQ queue: a connection that broke is taken for one that was closed",
        kinds=("rabbitmq-queue",),
        patches=((_Publishing, "_closed", _takes_a_break_for_an_end),),
    ),
    _mutant(
        name="RabbitMQ queue: messages that come again have other ids",
        kinds=("rabbitmq-queue",),
        patches=((QueuePublish, "messages", _ids_of_each_attempt),),
    ),
    _mutant(
        name="Pravega: the last transaction is not asked for before rows are written again",
        kinds=("pravega",),
        patches=((PravegaApplication, "_is_committed", lambda *_: False),),
    ),
    _mutant(
        name="Pravega: a transaction that is open is left so, and another one written",
        kinds=("pravega",),
        patches=((PravegaApplication, "_is_committed", _leaves_what_is_open),),
    ),
    _mutant(
        name="Pravega: a transaction that is being committed is taken for one that is not",
        kinds=("pravega",),
        patches=(
            (PravegaApplication, "_is_committed", _leaves_what_is_open),
            ("spark.pravega.client", "_TRANSIENT", ()),
        ),
    ),
    _mutant(
        name="Pravega: the id of a transaction is not noted",
        kinds=("pravega",),
        patches=((TransactionNotes, "put", lambda *_: True),),
    ),
    _mutant(
        name="MERGE: several rows of a key are not looked for before the decision",
        kinds=_TABLES,
        patches=((TableCommitter, "check_prepared", lambda *_: ""),),
    ),
    _mutant(
        name="Delta: neither the label nor the application's version tells that a table has rows",
        kinds=("delta",),
        patches=(("spark.tables.delta", "_application", _of_each_attempt), _NOT_ASKED),
    ),
    _mutant(
        name="Iceberg: neither labels nor notes tell that a table has rows",
        kinds=("iceberg",),
        patches=(("spark.tables.iceberg", "_notes", lambda _: {}), _NOT_ASKED),
    ),
    _mutant(
        name="Iceberg: a merge takes the place of what others have committed since",
        kinds=("iceberg",),
        patches=((_IcebergTable, "_publish", _replaces),),
    ),
)
