"""Deliberately wrong rules of the protocol, and wrong readings of servers' answers: the simulation has to find each."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

import pika

from simulation import product
from simulation.config import KINDS, READING, REFUSING, STAGED
from simulation.engine import UNDER_WAY, Simulation
from simulation.kafka import CONCURRENT_TRANSACTIONS, Kafka, ModelRetention
from simulation.logstore import ModelStore
from simulation.schedule import SYSTEMS
from simulation.systems import System
from sparkonce.driver.put import LogWriter
from sparkonce.driver.sweeper import Sweeper
from sparkonce.driver.write import BatchWriter
from sparkonce.errors import PrepareError
from sparkonce.executor import _Part
from sparkonce.protocol import claiming, coordinator, deciding, finishing, healing, preparing, stopping
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.effects import StopReason
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.healing import Key
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import HELD, LanePool
from sparkonce.protocol.records import Commit, Void
from sparkonce.protocol.state import Phase, State, batch_of, finishing_of, record_of, writing_of
from sparkonce.protocol.view import Floor, LogView
from sparkonce.sink import Refused, SinkCommitter
from sparkonce.sinks._shared.names import Claims
from sparkonce.sinks.files.committer import FilesCommitter
from sparkonce.sinks.files.handle import read_handle
from sparkonce.sinks.files.local import finish as local_files
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce.sinks.kafka.outcomes import BrokerAnswer, commit_outcome
from sparkonce.sinks.kafka.producer_pool import ProducerPool
from sparkonce.sinks.mysql import prepared
from sparkonce.sinks.mysql.names import Xid
from sparkonce.sinks.postgres.committer import PostgresCommitter
from sparkonce.sinks.rabbitmq.committer import StreamCommitter
from sparkonce.sinks.rabbitmq.connection import StreamRefusedError
from sparkonce.sinks.rabbitmq.messages import FRAME_OVERHEAD_BYTES, frames
from sparkonce.sinks.rabbitmq.publishing import Publisher
from sparkonce.sinks.rabbitmq.queue_publisher import QueuePublish, _Publishing
from sparkonce.sinks.write_ahead.application import Application
from sparkonce.sinks.write_ahead.committer import WriteAheadCommitter
from sparkonce.sources.rabbitmq.queue.memory import Memory
from sparkonce.sources.rabbitmq.queue.receiver import Receiver, _Waiting
from sparkonce.sources.rabbitmq.queue.segments import Segment, Segments, _segment
from sparkonce.spark.pravega.application import COMMITTED, PravegaApplication
from sparkonce.spark.pravega.notes import TransactionNotes
from sparkonce.spark.tables.committer import TableApplication, TableCommitter
from sparkonce.spark.tables.delta import _application
from sparkonce.spark.tables.iceberg import _MAIN, _IcebergTable

LOST = Finished(outcome=Outcome.LOST, reason="said by a mutant")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A wrong rule.

    Attributes:
        name: The rule, in words.
        kinds: The sinks that it is about: in other worlds it changes nothing.
        first_seed: The seed to begin with, for a fault that few schedules show.
        family: The family of worlds in which it is looked for.
        table: Entries of the coordinator's table to replace.
        patches: Attributes to replace: owner (or the name of a module), name, value.
        systems: Servers to replace.
    """

    name: str
    kinds: tuple[str, ...] = KINDS
    family: str = "transactions"
    first_seed: int = 0
    table: Mapping[tuple[Phase, type], Any] = field(default_factory=dict)
    patches: tuple[tuple[Any, str, Any], ...] = ()
    systems: Mapping[str, Callable[[Simulation, str], System]] = field(default_factory=dict)

    @contextmanager
    def built(self) -> Iterator[Mapping[str, Callable[[Simulation, str], System]]]:
        """The servers, as long as the product is wrong. Within `simulation.product.replaced`."""
        with ExitStack() as stack:
            stack.enter_context(mock.patch.dict(coordinator.TRANSITIONS, self.table))  # type: ignore[arg-type]
            for owner, name, value in self.patches:
                owner = import_module(f"sparkonce.{owner}") if isinstance(owner, str) else owner
                stack.enter_context(mock.patch.object(owner, name, value))
            yield {**SYSTEMS, **self.systems}


# --- the protocol -----------------------------------------------------------------------------------------------------


def _own_decision_is_foreign(state: State, event: on.PutTaken) -> Any:
    return stopping.superseded(state, "something stands there")


def _stops_at_own_decision(state: State, event: on.PutTaken) -> Any:
    return stopping.stop(state, StopReason.SUPERSEDED, "something stands there")


def _absent_is_absent(state: State, event: on.PutUnknown) -> Any:
    verdict = do.Stop(reason=StopReason.UNKNOWN, message="the decision is not there")
    return stopping.abort(state, record_of(state).handles, verdict)


def _finishes_first(state: State, event: on.Prepared) -> Any:
    if state.finishing is not None:
        return preparing.prepared(state, event)
    handles = tuple(sorted(event.handles))
    writing = replace(writing_of(state), handles=handles)
    state = replace(state, phase=Phase.FINISHING, writing=writing)
    return state, do.Finish(batch=batch_of(state).number, handles=handles, attempt=0)


def _decides_afterwards(state: State, event: on.Finished) -> Any:
    if state.finishing is not None:
        return finishing.finished(state, event)
    return preparing.decide(state, Commit, writing_of(state).handles)


_look = ModelRetention.look


def _silence_is_consent(check: ModelRetention, views: Any, deadline_s: float) -> Any:
    return _look(check, views, deadline_s)[0], {}


def _aborts_before_it_is_void(state: State, event: on.Finished) -> Any:
    after, effect = finishing.finished(state, event)
    if isinstance(effect, do.Put) and isinstance(effect.record, Void):
        known = finishing_of(after)
        return finishing.finish(after, replace(known.decision, void=effect.record.void), known.pending)
    return after, effect


def _drops_a_handle(state: State, event: on.Prepared) -> Any:
    return preparing.prepared(state, on.Prepared(handles=tuple(event.handles)[:-1]))


def _judges_without_reading(state: State, event: on.LogRead) -> Any:
    return finishing.judge_loss(state, on.LogRead(view=state.view))


def _reads(outcome: Outcome, as_: Outcome) -> Mapping[tuple[Phase, type], Any]:
    def misread(state: State, event: on.Finished) -> Any:
        outcomes = tuple(as_ if one is outcome else one for one in event.outcomes)
        return finishing.finished(state, replace(event, outcomes=outcomes))

    return {(Phase.FINISHING, on.Finished): misread}


def _landed_below_the_floor(state: State, event: on.PutLanded) -> Any:
    return deciding.landed(state, replace(event, floor=Floor()))


def _claimed_below_the_floor(state: State, event: on.PutLanded) -> Any:
    return claiming.claim_landed(state, replace(event, floor=Floor()))


def _reuses_lanes_at_once(pool: LanePool, batch: int) -> tuple[LanePool, int]:
    for lane, last_batch in enumerate(pool.lanes):
        if last_batch not in (HELD, batch):
            return pool._with(lane, HELD), lane
    return LanePool((*pool.lanes, HELD)), len(pool.lanes)


def _thinks_that_it_has_swept(sweeper: Sweeper, *asked: Any) -> bool:
    _TRY_TO_SWEEP(sweeper, *asked)
    return True


_TRY_TO_SWEEP = Sweeper._try


def _only_waits(writer: BatchWriter, *_: Any) -> Any:
    return None if writer._outage.pause(writer._reason) else on.PrepareFailed(reason=writer._reason)


def _puts_over_a_claim(writer: LogWriter, effect: do.Put, log: LogView) -> Any:
    answer = _MEANWHILE(writer, effect, log)
    return on.PutLanded(position=effect.position, floor=Floor()) if isinstance(answer, on.PutTaken) else answer


_MEANWHILE = LogWriter._meanwhile


def _closes_without_a_last_sweep(sweeper: Sweeper, *, sweep: bool) -> None:
    _CLOSE(sweeper, sweep=False)


_CLOSE = Sweeper.close


# --- Kafka ------------------------------------------------------------------------------------------------------------


class _CommitBumps(Kafka):
    """Commits by EndTxn v5, and the broker tells nobody that it was the same commit."""

    commit_bumps = True


def _gives_a_failed_lane_back(pool: ProducerPool, number: int) -> None:
    try:
        pooled = pool._make(number)
    except PrepareError as error:
        pool._starting -= 1
        pool._lanes = pool._lanes.give_back(number, pool._last_batch)
        if pool._waiting:
            pool._waiting.popleft().set_exception(error)
        return
    pool._starting -= 1
    pool._offer(pooled)


# --- readings of answers ----------------------------------------------------------------------------------------------


def _unmarked_is_lost(answer: BrokerAnswer) -> Finished:
    return LOST if answer.code == CONCURRENT_TRANSACTIONS else commit_outcome(answer)


def _committed_is_gone(connection: Any, names: Any, found: Any, place: Any, *, commit: bool) -> Any:
    return {name: LOST for name in names if name not in found or found[name][0] == "committed"}


def _refused_is_lost(session: Any, name: Any, _: float) -> Finished:
    refusal = prepared._try(session.connection, f"XA COMMIT {Xid.of(name)}")
    if refusal is None:
        return Finished(outcome=Outcome.COMMITTED)
    listed = Xid.of(name) in prepared.recovered(session.connection, session.flavour)
    return Finished(outcome=Outcome.RETRY) if listed else LOST


def _nosuchupload_is_lost(code: str, standing: Any, fields: Any) -> Finished:
    return LOST


def _links_and_looks_no_further(self: Any, fields: Any, final: Any) -> Finished:
    try:
        local_files.os.link(self._held / str(fields["held"]), final)
    except FileExistsError:
        return Finished(outcome=Outcome.ALREADY_COMMITTED)
    except FileNotFoundError:
        return LOST
    return Finished(outcome=Outcome.COMMITTED)


def _tidies_up_what_is_published(self: Any, batch: int, handles: Any) -> None:
    for handle in handles:
        if handle.transaction:
            self._store.delete([str(one["path"]) for one in self._files_of(read_handle(handle))])


class _Everybody:
    """Says of every run that it is one of those that are asked for."""

    def has(self, name: object) -> bool:
        return True


def _in_whatever_slots(
    lost: Set[Key], whole: Set[str], replayed: Sequence[Handle], places: Mapping[Key, int]
) -> frozenset[Key]:
    sinks = {sink for sink, slot in lost if (sink, slot) not in places}
    found = {(sink, places[sink, slot]) for sink, slot in lost if (sink, slot) in places}
    return frozenset(found | {handle.key for handle in replayed if handle.sink in sinks and handle.rows})


_KAFKA = ("kafka-v1", "kafka-v2")
_POSTGRES = ("postgres", "postgres-staged")
_S3 = ("s3", "s3-gateway")

MUTANTS = (
    Mutant(
        name="a decision of its own is taken for somebody else's, and undone",
        table={(Phase.RESOLVING, on.PutTaken): _own_decision_is_foreign},
    ),
    Mutant(
        name="a run stops at a decision of its own as if a newer one had put it",
        table={(Phase.RESOLVING, on.PutTaken): _stops_at_own_decision},
    ),
    Mutant(
        name="a put without an answer is read as absent", table={(Phase.DECIDING, on.PutUnknown): _absent_is_absent}
    ),
    Mutant(
        name="a record that stands and cannot be read is taken for one that was not written",
        patches=((ModelStore, "unreadable", staticmethod(lambda: OSError(errno.ESTALE, "stale file handle"))),),
    ),
    Mutant(
        name="a commit before the decision",
        table={(Phase.WRITING, on.Prepared): _finishes_first, (Phase.FINISHING, on.Finished): _decides_afterwards},
    ),
    Mutant(name="a handle is dropped from the decision", table={(Phase.WRITING, on.Prepared): _drops_a_handle}),
    Mutant(name="a loss is passed over", table=_reads(Outcome.LOST, as_=Outcome.COMMITTED)),
    Mutant(name="no answer is read as a loss", table=_reads(Outcome.RETRY, as_=Outcome.LOST)),
    Mutant(name="an answer that nobody knows is read as a loss", table=_reads(Outcome.UNKNOWN, as_=Outcome.LOST)),
    Mutant(name="an answer that nobody knows is read as done", table=_reads(Outcome.UNKNOWN, as_=Outcome.COMMITTED)),
    Mutant(
        name="a sink that is lost in part is written again in whatever slots",
        patches=(
            (healing, "_where_lost", _in_whatever_slots),
            (healing, "_differing", lambda *_: ()),
        ),
    ),
    Mutant(
        name="a sink that is lost as a whole needs the slots of before",
        patches=((healing, "_lost_whole", lambda *_: frozenset()),),
    ),
    Mutant(
        name="a decision is acted on that fell below the floor",
        table={
            (Phase.DECIDING, on.PutLanded): _landed_below_the_floor,
            (Phase.CLAIMING, on.PutLanded): _claimed_below_the_floor,
        },
    ),
    Mutant(
        name="a sink that could not be swept counts as swept",
        patches=((Sweeper, "_try", _thinks_that_it_has_swept),),
    ),
    Mutant(
        name="a write that failed is done again, and what it left open is not looked for",
        patches=((BatchWriter, "_undo", _only_waits),),
    ),
    Mutant(
        name="a put that has waited for room is taken for done where another run's stands",
        patches=((LogWriter, "_meanwhile", _puts_over_a_claim),),
    ),
    Mutant(
        name="Kafka: executors' clocks alone say how old transactions are before a decision",
        kinds=_KAFKA,
        patches=((KafkaCommitter, "begun_ms", SinkCommitter.begun_ms),),
    ),
    Mutant(
        name="the thread that sweeps does not wait until no batch is at work",
        patches=((product.Lock, "__enter__", lambda _: None), (product.Lock, "__exit__", lambda *_: None)),
    ),
    Mutant(
        name="what the thread has not swept yet is left when a run ends in order",
        patches=((Sweeper, "close", _closes_without_a_last_sweep),),
    ),
    Mutant(
        name="Kafka: a fence is taken for a loss after superseding, lanes used again at once",
        kinds=_KAFKA,
        patches=(
            (LanePool, "lend", _reuses_lanes_at_once),
            ("sinks.kafka.committer", "confirm_lost", lambda verdict, _, __: verdict),
        ),
    ),
    Mutant(
        name="Kafka: a commit whose markers are still to be written is lost",
        kinds=_KAFKA,
        patches=(
            ("sinks.kafka.committer", "commit_outcome", _unmarked_is_lost),
            ("sinks.kafka.committer", "confirm_lost", lambda verdict, _, __: verdict),
        ),
    ),
    Mutant(
        name="Kafka v2: a repeated commit that is called fenced is read as lost",
        kinds=("kafka-v2",),
        systems={"kafka-v2": _CommitBumps},
        patches=(
            ("sinks.kafka.committer", "confirm_lost", lambda verdict, _, __: verdict),
            (KafkaCommitter, "list_traces", lambda *_: ()),
        ),
    ),
    Mutant(
        name="Kafka v2: aborts by EndTxn v4, which leaves the epoch",
        kinds=("kafka-v2",),
        patches=(("sinks.kafka.transaction_client", "_EPOCH_RAISED", {"max_version": 4}),),
    ),
    Mutant(
        name="Kafka v2: aborts as version 1 has to, which compares no epoch",
        kinds=("kafka-v2",),
        patches=(("sinks.kafka.committer", "_EPOCH_BUMPED_BY_END", 3),),
    ),
    Mutant(
        name="Kafka: a lane whose initialisation was not answered is given back",
        kinds=_KAFKA,
        patches=((ProducerPool, "_start", _gives_a_failed_lane_back),),
    ),
    Mutant(
        name="Kafka: a producer is kept for the next task after its transaction",
        kinds=_KAFKA,
        patches=((ProducerPool, "retire", lambda pool, pooled, _: pool.give_back(pooled)),),
    ),
    Mutant(
        name="Kafka: a coordinator that has moved is not looked up again",
        kinds=_KAFKA,
        patches=(("sinks.kafka.transaction_client", "MOVED", frozenset()),),
    ),
    Mutant(
        name="Kafka: a sweep takes newer runs' transactions, too",
        kinds=_KAFKA,
        patches=((Claims, "has", lambda _, __: True),),
    ),
    Mutant(
        name="Kafka: what has lost rows is committed",
        kinds=_KAFKA,
        patches=((ModelRetention, "held_back", lambda *_: {}),),
    ),
    Mutant(
        name="Kafka: what has lost rows is aborted before the log says that it is void",
        kinds=_KAFKA,
        table={(Phase.FINISHING, on.Finished): _aborts_before_it_is_void},
    ),
    Mutant(
        name="Kafka: a broker that does not say whether it has the rows is taken to have them",
        kinds=_KAFKA,
        patches=((ModelRetention, "look", _silence_is_consent),),
    ),
    Mutant(
        name="PostgreSQL: a sweep takes newer runs' transactions, too",
        kinds=_POSTGRES,
        patches=((Claims, "has", lambda _, __: True),),
    ),
    Mutant(
        name="PostgreSQL: a gid that is not there is lost, whatever its marker says",
        kinds=("postgres",),
        patches=(("sinks.postgres.prepared", "_gone", lambda *_: LOST),),
    ),
    Mutant(
        name="PostgreSQL: a connection that was lost means that the rows are",
        kinds=_POSTGRES,
        patches=(
            ("sinks.postgres.committer", "finished", lambda _: LOST),
            ("sinks.postgres.prepared", "finished", lambda _: LOST),
            ("sinks.postgres.staged", "finished", lambda _: LOST),
        ),
    ),
    Mutant(
        name="PostgreSQL: an abort does not end the writer's session",
        kinds=_POSTGRES,
        patches=((PostgresCommitter, "_stop_writers", lambda _, __: True),),
    ),
    Mutant(
        name="PostgreSQL, staged: a copy that is merged already is lost",
        kinds=("postgres-staged",),
        patches=(("sinks.postgres.staged", "_before", _committed_is_gone),),
    ),
    Mutant(
        name="MariaDB: 1397 means lost, whatever the marker says",
        kinds=("mariadb",),
        patches=(("sinks.mysql.prepared", "commit_prepared", _refused_is_lost),),
    ),
    Mutant(
        name="MariaDB: 1397 means lost, also while the connection that prepared is there",
        kinds=("mariadb",),
        patches=(
            ("sinks.mysql.prepared", "recovered", lambda _, __: set()),
            ("sinks.mysql.markers", "is_seen", lambda _, __: False),
        ),
    ),
    Mutant(
        name="files: a held name that is gone is lost, without a look at the other one",
        kinds=("files",),
        patches=((local_files.Finisher, "_link", _links_and_looks_no_further),),
    ),
    Mutant(
        name="files: whoever tidies up behind a batch takes its published files, too",
        kinds=("files",),
        patches=((FilesCommitter, "conclude", _tidies_up_what_is_published),),
    ),
    Mutant(
        name="files and S3: a sweep takes newer runs' files, too",
        kinds=("files", *_S3),
        patches=(("sinks.files.committer", "Claims", lambda _: _Everybody()),),
    ),
    Mutant(
        name="S3: NoSuchUpload is lost, although the object is there",
        kinds=_S3,
        patches=(("sinks.files.s3.finish", "after_look", _nosuchupload_is_lost),),
    ),
)


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


_staged = partial(Mutant, family="staged")

_TABLES = ("delta", "iceberg")
_NOT_ASKED = (TableApplication, "is_applied", lambda *_: False)

STAGED_MUTANTS: Sequence[Mutant] = (
    _staged(
        name="rows that wait are deleted before it is noted that they are applied",
        kinds=STAGED,
        patches=((Application, "_note", _deletes_first),),
    ),
    _staged(
        name="rows that wait are noted as applied before they are",
        kinds=STAGED,
        patches=((Application, "_apply", _notes_first),),
    ),
    _staged(
        name="rows that wait: a store that is away ends a commit",
        kinds=STAGED,
        patches=((Application, "apply", Application._apply),),
    ),
    _staged(
        name="RabbitMQ stream: what an earlier run has published is not learned when it is committed again",
        first_seed=650,
        kinds=("rabbitmq-stream",),
        patches=((StreamCommitter, "commit_all", WriteAheadCommitter.commit_all),),
    ),
    _staged(
        name="RabbitMQ stream: publishing begins behind the highest id, which may not be safe",
        first_seed=1_540,
        kinds=("rabbitmq-stream",),
        patches=((Publisher, "publish", _begins_behind_the_highest),),
    ),
    _staged(
        name="RabbitMQ stream: a publisher believes what it has sent, instead of asking",
        kinds=("rabbitmq-stream",),
        patches=((Publisher, "_send", _notes_what_it_sends), (Publisher, "sequence", _believes_its_notes)),
    ),
    _staged(
        name="RabbitMQ stream: the next frame is sent although the last one was refused",
        first_seed=560,
        kinds=("rabbitmq-stream",),
        patches=((Publisher, "_send", _sends_on),),
    ),
    _staged(
        name="RabbitMQ stream: a publisher draws its ids",
        kinds=("rabbitmq-stream",),
        patches=((Publisher, "publish", _draws_ids),),
    ),
    _staged(
        name="RabbitMQ stream: each driver publishes under a name of its own",
        kinds=("rabbitmq-stream",),
        patches=((Publisher, "__init__", _with_a_name_of_its_own),),
    ),
    _staged(
        name="RabbitMQ queue: a message that is refused last is taken for confirmed",
        kinds=("rabbitmq-queue",),
        patches=((_Publishing, "_answered", _forgets_what_was_refused),),
    ),
    _staged(
        name="RabbitMQ queue: a connection that broke is taken for one that was closed",
        kinds=("rabbitmq-queue",),
        patches=((_Publishing, "_closed", _takes_a_break_for_an_end),),
    ),
    _staged(
        name="RabbitMQ queue: messages that come again have other ids",
        kinds=("rabbitmq-queue",),
        patches=((QueuePublish, "messages", _ids_of_each_attempt),),
    ),
    _staged(
        name="Pravega: the last transaction is not asked for before rows are written again",
        kinds=("pravega",),
        patches=((PravegaApplication, "_is_committed", lambda *_: False),),
    ),
    _staged(
        name="Pravega: a transaction that is open is left so, and another one written",
        kinds=("pravega",),
        patches=((PravegaApplication, "_is_committed", _leaves_what_is_open),),
    ),
    _staged(
        name="Pravega: a transaction that is being committed is taken for one that is not",
        kinds=("pravega",),
        patches=(
            (PravegaApplication, "_is_committed", _leaves_what_is_open),
            ("spark.pravega.client", "_TRANSIENT", ()),
        ),
    ),
    _staged(
        name="Pravega: the id of a transaction is not noted",
        kinds=("pravega",),
        patches=((TransactionNotes, "put", lambda *_: True),),
    ),
    _staged(
        name="MERGE: several rows of a key are not looked for before the decision",
        kinds=_TABLES,
        patches=((TableCommitter, "check_prepared", lambda *_: ""),),
    ),
    _staged(
        name="Delta: neither the label nor the application's version tells that a table has rows",
        kinds=("delta",),
        patches=(("spark.tables.delta", "_application", _of_each_attempt), _NOT_ASKED),
    ),
    _staged(
        name="Iceberg: neither labels nor notes tell that a table has rows",
        kinds=("iceberg",),
        patches=(("spark.tables.iceberg", "_notes", lambda _: {}), _NOT_ASKED),
    ),
    _staged(
        name="Iceberg: a merge takes the place of what others have committed since",
        kinds=("iceberg",),
        patches=((_IcebergTable, "_publish", _replaces),),
    ),
)


# --- rows that are refused: accepted and refused ones together are the input ------------------------------------------


def _forgets_letters(self: _Part, sink: str, rows: Any, reasons: Sequence[str], hashes: Any) -> None:
    """Drops what was refused."""


def _takes_what_it_refuses(self: _Part, batch: Any, rows: Any) -> Refused:
    refused = self._open().offer(rows)
    if refused.rows:
        self._open().write(rows.take(refused.rows))
    return refused


def _writes_always(self: _Part, sink: str, rows: Any, reasons: Sequence[str], hashes: Any) -> None:
    kept, self._is_kept = self._is_kept, True
    _RECEIVE(self, sink, rows, reasons, hashes)
    self._is_kept = kept or self._writer is not None


_RECEIVE = _Part.receive


def _only_counts(self: _Part, rows: int, hashes: Any) -> None:
    self._rows += rows


_letters = partial(Mutant, family="letters", kinds=REFUSING)

LETTERS_MUTANTS: Sequence[Mutant] = (
    _letters(name="dead letters: what is refused is dropped", patches=((_Part, "receive", _forgets_letters),)),
    _letters(
        name="dead letters: what is refused is written, too", patches=((_Part, "_offer", _takes_what_it_refuses),)
    ),
    _letters(
        name="dead letters: they are written again whenever a batch is healed",
        patches=((_Part, "receive", _writes_always),),
    ),
    _letters(
        name="dead letters: the evidence of a slot does not tell which rows it took",
        patches=((_Part, "_count", _only_counts),),
    ),
)


# --- the source that reads RabbitMQ's queues --------------------------------------------------------------------------


def _acknowledges_what_it_has(self: Receiver) -> int | None:
    tag = self._held[-1][0] if self._held else None
    self._held.clear()
    return tag


def _forgets_what_may_stand(self: Receiver) -> None:
    self._held.clear()
    self._waiting = _Waiting()


def _loads_no_ids(self: Receiver) -> None:
    _LOAD(self)
    self._memory = Memory(self._settings.remember)


_LOAD = Receiver._load


def _keeps_no_ids(self: Segments, segments: Sequence[tuple[int, Any]]) -> None:
    _FORGET(self, [(number, ()) for number, _ in segments])


_FORGET = Segments.forget


def _puts_as_if_alone(self: Segments, number: int, segment: Segment) -> None:
    self.files.put(_segment(number), segment.encode())


def _end_of_all(self: Receiver, begin: int, most_rows: int | None) -> int:
    if begin not in self._rows and begin < self._next:
        raise KeyError(begin)
    return _END(self, begin, most_rows)


_END = Receiver.end
_reading = partial(Mutant, family="reading", kinds=READING)

READING_MUTANTS: Sequence[Mutant] = (
    _reading(
        name="RabbitMQ source: messages are acknowledged before they are kept",
        patches=((Receiver, "acknowledge", _acknowledges_what_it_has),),
    ),
    _reading(
        name="RabbitMQ source: a receiver that starts does not know what was kept before",
        patches=((Receiver, "_load", _loads_no_ids),),
    ),
    _reading(
        name="RabbitMQ source: the ids of segments that are deleted are not kept",
        patches=((Segments, "forget", _keeps_no_ids),),
    ),
    _reading(
        name="RabbitMQ source: a segment that may stand is forgotten with its connection",
        patches=((Receiver, "disconnected", _forgets_what_may_stand),),
    ),
    _reading(
        name="RabbitMQ source: a batch that others have finished is planned",
        patches=((Receiver, "end", _end_of_all),),
    ),
    _reading(
        name="RabbitMQ source: a number that another receiver has taken is taken for one's own",
        patches=((Segments, "put", _puts_as_if_alone),),
    ),
)

EVERY_MUTANT = (*MUTANTS, *STAGED_MUTANTS, *LETTERS_MUTANTS, *READING_MUTANTS)
