"""Deliberately wrong rules of the protocol, and wrong readings of servers' answers: the simulation has to find each."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any
from unittest import mock

from simulation import product
from simulation.config import KINDS
from simulation.engine import Simulation
from simulation.kafka import CONCURRENT_TRANSACTIONS, Kafka, ModelRetention
from simulation.logstore import ModelStore
from simulation.schedule import SYSTEMS
from simulation.systems import System
from sparkonce.driver.put import LogWriter
from sparkonce.driver.sweeper import Sweeper
from sparkonce.driver.write import BatchWriter
from sparkonce.errors import PrepareError
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
from sparkonce.sink import SinkCommitter
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

LOST = Finished(outcome=Outcome.LOST, reason="said by a mutant")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A wrong rule.

    Attributes:
        name: The rule, in words.
        kinds: The sinks that it is about: in other worlds it changes nothing.
        family: The family of worlds in which it is looked for.
        table: Entries of the coordinator's table to replace.
        patches: Attributes to replace: owner (or the name of a module), name, value.
        systems: Servers to replace.
    """

    name: str
    kinds: tuple[str, ...] = KINDS
    family: str = "transactions"
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
