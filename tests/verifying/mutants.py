"""sparkonce broken on purpose, one rule at a time: the verifier has to find what comes of each.

A mutant changes the product in the query's processes only (`broken/sitecustomize.py`), never in the verifier's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparkonce.lab.faults import Fault
from sparkonce.lab.schedule import Step
from sparkonce.lab.verdicts import Anomaly
from sparkonce.protocol.state import Phase

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.protocol.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A wrong sparkonce.

    Attributes:
        words: What is wrong with it.
        injure: Makes it so in this process.
        wanted: One of these must be found.
        system: In which system; empty if in any.
        faults: What brings it to light: fault, phase, system, request.
        ends_it: Whether the query cannot go on, so that its run breaks off.
    """

    words: str
    injure: Callable[[], None]
    wanted: frozenset[Anomaly]
    system: str = ""
    faults: Sequence[tuple[Fault, Phase, str, str]] = ()
    ends_it: bool = False


def schedule(mutants: Iterable[Mutant]) -> list[Step]:
    """Lists the faults that bring all of them to light, each once."""
    faults = dict.fromkeys(fault for mutant in mutants for fault in mutant.faults)
    return [
        Step(number=number, fault=fault, phase=phase.name, system=system, request=request, batches=1)
        for number, (fault, phase, system, request) in enumerate(faults, 1)
    ]


def _transitions(changed: Callable[[], Mapping[tuple[Phase, type], Any]]) -> Callable[[], None]:
    """Replaces entries of the coordinator's table."""

    def injure() -> None:
        from sparkonce.protocol import coordinator

        coordinator.TRANSITIONS = {**coordinator.TRANSITIONS, **changed()}

    return injure


def _finishes_first() -> None:
    from model import mutants as wrong
    from sparkonce.protocol import events as on

    _transitions(
        lambda: {
            (Phase.WRITING, on.Prepared): wrong._finishes_first,
            (Phase.FINISHING, on.Finished): wrong._decides_afterwards,
        }
    )()


def _passes_over_lost() -> None:
    from model import mutants as wrong
    from sparkonce.protocol import events as on
    from sparkonce.protocol.outcomes import Outcome

    handler = wrong._passes_over(Outcome.LOST, Outcome.COMMITTED)
    _transitions(lambda: {(Phase.FINISHING, on.Finished): handler})()


def _takes_silence_for_loss() -> None:
    """In the Kafka committer: what it got no answer to is LOST. A commit is asked for once."""
    from sparkonce.protocol.outcomes import FINAL, Finished, Outcome
    from sparkonce.sinks.kafka import transaction_client
    from sparkonce.sinks.kafka.committer import KafkaCommitter

    real = KafkaCommitter.commit

    def commit(self: Any, handles: Sequence[Any]) -> list[Finished]:
        lost = Finished(outcome=Outcome.LOST, reason="no answer")
        return [one if one.outcome in FINAL else lost for one in real(self, handles)]

    KafkaCommitter.commit = commit  # type: ignore[method-assign]
    transaction_client.is_unanswered = lambda _: False


def _writes_again() -> None:
    from model import mutants as wrong
    from sparkonce.protocol import claiming, view

    claiming.judge_batch = wrong._writes_decided_again
    view.LogView._decided = wrong._permissive  # type: ignore[method-assign]


def _drops_a_handle() -> None:
    from model import mutants as wrong
    from sparkonce.protocol import events as on

    def handler(state: State, event: on.Prepared) -> Any:
        # Of a handle that holds rows: else nothing is dropped.
        ordered = sorted(event.handles, key=lambda handle: bool(handle.transaction))
        return wrong._drops_a_handle(state, replace(event, handles=tuple(ordered)))

    _transitions(lambda: {(Phase.WRITING, on.Prepared): handler})()


def _ignores_newer_claims() -> None:
    from model import mutants as wrong
    from sparkonce.protocol import events as on
    from sparkonce.protocol import view

    _transitions(lambda: {(Phase.DECIDING, on.PutTaken): wrong._decides_behind_newer})()
    view.LogView._decided = wrong._permissive  # type: ignore[method-assign]


def _finishes_one_sink() -> None:
    """A run that recovers commits the handles of the batch's first sink, calls it done, and asks no server later."""
    from sparkonce.driver import perform
    from sparkonce.protocol import finishing

    real = finishing.finish

    def finish(state: State, decision: Any, handles: Sequence[Any]) -> Any:
        if state.finishing is not None and state.finishing.recovering:
            first = min(handle.sink for handle in handles)
            handles = tuple(handle for handle in handles if handle.sink == first)
        return real(state, decision, handles)

    finishing.finish = finish
    perform.check_servers = lambda *_: None  # which would commit the others at the next start, or stop it


def _sweeps_nothing() -> None:
    from sparkonce.sinks.files.committer import FilesCommitter
    from sparkonce.sinks.kafka.committer import KafkaCommitter
    from sparkonce.sinks.postgres.committer import PostgresCommitter

    for kind in (FilesCommitter, KafkaCommitter, PostgresCommitter):
        kind.list_lingering = lambda self, owners: ()  # type: ignore[method-assign, misc, assignment]


def _drops_rows() -> None:
    """The Kafka writer leaves out the first row of what it is given, and counts it."""
    from sparkonce.sinks.kafka.writer import KafkaWriter

    real = KafkaWriter.write
    KafkaWriter.write = lambda self, rows: real(self, rows.slice(1))  # type: ignore[method-assign]


def _turns_rows_round() -> None:
    from sparkonce.sinks.kafka.writer import KafkaWriter

    real = KafkaWriter.write

    def write(self: Any, rows: pa.RecordBatch) -> None:
        real(self, rows.take(list(range(rows.num_rows - 1, -1, -1))))

    KafkaWriter.write = write  # type: ignore[method-assign]


def _does_not_flush() -> None:
    """The Kafka writer takes what was handed to librdkafka for written, but for the first batch.

    librdkafka waits for more rows to send them together with: else those of a small batch would be there anyway.
    """
    from sparkonce.sinks.kafka.pooled_producer import PooledProducer
    from sparkonce.sinks.kafka.writer import KafkaWriter

    right, make = KafkaWriter.prepare, PooledProducer.__init__

    def prepare(self: Any) -> Mapping[str, str | int]:
        if self._batch == 0:
            return right(self)
        pooled = self._open_producer()
        return {"transactional_id": pooled.transactional_id, "producer_id": pooled.producer_id, "epoch": pooled.epoch}

    def make_lingering(self: Any, settings: Mapping[str, Any], **more: Any) -> None:
        make(self, {**settings, "linger.ms": 5_000}, **more)

    KafkaWriter.prepare = prepare  # type: ignore[method-assign]
    PooledProducer.__init__ = make_lingering  # type: ignore[method-assign]


def _looks_for_no_marker() -> None:
    """PostgreSQL: a prepared transaction that is gone is taken for lost."""
    from sparkonce.protocol.outcomes import Finished, Outcome
    from sparkonce.sinks.postgres import prepared

    prepared._gone = lambda look, name, place: Finished(outcome=Outcome.LOST, reason="gone")


def _weaker_guarantee() -> None:
    from sparkonce.guarantees import Guarantee
    from sparkonce.sinks.kafka.sink import KafkaSink

    real = KafkaSink.__init__

    def init(self: Any, *given: Any, **more: Any) -> None:
        real(self, *given, **{**more, "guarantee": Guarantee.AT_LEAST_ONCE})

    KafkaSink.__init__ = init  # type: ignore[method-assign]


def _rows_twice() -> None:
    """A slot of the files sink writes what it is given first a second time."""
    from sparkonce.sinks.files.writer import FilesWriter

    real = FilesWriter.write

    def write(self: Any, rows: pa.RecordBatch) -> None:
        real(self, rows)
        real(self, rows.slice(0, 1))

    FilesWriter.write = write  # type: ignore[method-assign]


def _refuses_its_own() -> None:
    """A run that is asked for the batch that was decided last takes the checkpoint for an old one."""
    from sparkonce.protocol import claiming
    from sparkonce.protocol import effects as do
    from sparkonce.protocol.effects import StopReason

    real = claiming.refusal

    def refusal(state: State) -> Any:
        newest = state.view.newest_decision
        if newest is not None and state.batch is not None and newest.batch >= state.batch.number:
            return do.Stop(reason=StopReason.STALE, message="an old checkpoint")
        return real(state)

    claiming.refusal = refusal


def _asks_for_ever() -> None:
    """A transaction that is lost is asked for again and again."""
    from model import mutants as wrong
    from sparkonce.protocol import events as on
    from sparkonce.protocol.outcomes import Outcome

    _transitions(lambda: {(Phase.FINISHING, on.Finished): wrong._passes_over(Outcome.LOST, Outcome.RETRY)})()


def _log_overwrites() -> None:
    """A record takes the place of the one that stands there."""
    from sparkonce.durable import sync_folder, temporary_file
    from sparkonce.log import local
    from sparkonce.log.base import Landed

    def put(self: Any, folder: Any, position: int, data: bytes) -> Any:
        final = local._path(folder, position)
        with temporary_file(folder, data) as temporary:
            final.unlink(missing_ok=True)
            final.hardlink_to(temporary)
        sync_folder(folder)
        return Landed()

    local.LocalLogStore._put = put  # type: ignore[method-assign]


def _repeats_are_losses() -> None:
    """In the files committer: files that are published already are taken for lost."""
    from sparkonce.protocol.outcomes import Finished, Outcome
    from sparkonce.sinks.files.committer import FilesCommitter

    real = FilesCommitter.commit

    def commit(self: Any, handles: Sequence[Any]) -> list[Finished]:
        lost = Finished(outcome=Outcome.LOST, reason="not held back any more")
        return [lost if one.outcome is Outcome.ALREADY_COMMITTED else one for one in real(self, handles)]

    FilesCommitter.commit = commit  # type: ignore[method-assign]


def _shows_at_prepare() -> None:
    """The files writer publishes what it has prepared."""
    from sparkonce.sinks.files.writer import FilesWriter

    real = FilesWriter.prepare

    def prepare(self: Any) -> Mapping[str, str | int]:
        fields = real(self)
        self._publish([{**sealed.result(), "rows": rows} for rows, sealed in self._sealed])
        return fields

    FilesWriter.prepare = prepare  # type: ignore[method-assign]


def _loses_signs() -> None:
    """The PostgreSQL writer encodes negative numbers as positive ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from sparkonce.sinks.postgres.writer import PostgresWriter

    real = PostgresWriter.write

    def write(self: Any, rows: pa.RecordBatch) -> None:
        columns = {
            name: pc.abs(rows.column(name)) if pa.types.is_int64(rows.schema.field(name).type) else rows.column(name)
            for name in rows.schema.names
        }
        real(self, pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema))

    PostgresWriter.write = write  # type: ignore[method-assign]


def _sweeps_by_committing() -> None:
    """The PostgreSQL committer commits what it is to abort. (In Kafka it may have expired before anybody sweeps.)"""
    from sparkonce.sinks.postgres.committer import PostgresCommitter

    PostgresCommitter.abort = lambda self, handles: self.commit(handles)  # type: ignore[method-assign]


def _reads_at_random() -> None:
    """The source leaves rows out, other ones each time."""
    import sparkonce
    from sparkonce.spark import read_kafka as reading

    real = reading.read_kafka

    def read_kafka(*given: Any, **more: Any) -> Any:
        from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

        return real(*given, **more).where(F.rand() < 0.99)

    reading.read_kafka = sparkonce.read_kafka = read_kafka


_KILLED_DECIDING = ((Fault.DRIVER_KILLED, Phase.DECIDING, "", ""),)
_KILLED_FINISHING = ((Fault.DRIVER_KILLED, Phase.FINISHING, "", ""),)

MUTANTS: Mapping[str, Mutant] = {
    "commits-first": Mutant(
        words="a batch is committed before it is decided",
        injure=_finishes_first,
        wanted=frozenset({Anomaly.EARLY}),
        faults=_KILLED_DECIDING,
        ends_it=True,
    ),
    "lost-passed-over": Mutant(
        words="a lost transaction is logged and passed over, as Flink's sink does",
        injure=_passes_over_lost,
        wanted=frozenset({Anomaly.MISSING}),
        faults=((Fault.EXPIRED, Phase.FINISHING, "", ""),),
    ),
    "silence-is-loss": Mutant(
        words="a commit without an answer is taken for lost, and written again",
        injure=_takes_silence_for_loss,
        wanted=frozenset({Anomaly.DOUBLED}),
        system="kafka",
        faults=((Fault.REPLY_LOST, Phase.DECIDING, "kafka", "end"),),
    ),
    "writes-again": Mutant(
        words="a decided batch is written again after a restart",
        injure=_writes_again,
        wanted=frozenset({Anomaly.DOUBLED}),
        faults=((Fault.DRIVER_KILLED, Phase.IDLE, "", ""),),
    ),
    "drops-a-handle": Mutant(
        words="a decision does not name one of its transactions",
        injure=_drops_a_handle,
        wanted=frozenset({Anomaly.MISSING}),
    ),
    "ignores-newer-claims": Mutant(
        words="a driver that has been deposed decides all the same",
        injure=_ignores_newer_claims,
        wanted=frozenset({Anomaly.DOUBLED, Anomaly.STOPPED}),
        faults=((Fault.DRIVER_PAUSED, Phase.DECIDING, "", ""),),
    ),
    "finishes-one-sink": Mutant(
        words="a driver that recovers commits one of the sinks only",
        injure=_finishes_one_sink,
        wanted=frozenset({Anomaly.TORN}),
        faults=_KILLED_FINISHING,
    ),
    "sweeps-nothing": Mutant(
        words="what a killed driver has left open is not looked for",
        injure=_sweeps_nothing,
        wanted=frozenset({Anomaly.LINGERING}),
        faults=_KILLED_DECIDING,
    ),
    "drops-rows": Mutant(
        words="the Kafka writer leaves a row out and counts it",
        injure=_drops_rows,
        wanted=frozenset({Anomaly.MISSING}),
        system="kafka",
    ),
    "rows-twice": Mutant(
        words="the files writer writes a row twice",
        injure=_rows_twice,
        wanted=frozenset({Anomaly.DOUBLED}),
        system="files",
    ),
    "turns-rows-round": Mutant(
        words="the Kafka writer writes a batch of rows in the wrong order",
        injure=_turns_rows_round,
        wanted=frozenset({Anomaly.OUT_OF_ORDER}),
        system="kafka",
    ),
    "does-not-flush": Mutant(
        words="the Kafka writer prepares before its rows have arrived",
        injure=_does_not_flush,
        wanted=frozenset({Anomaly.MISSING, Anomaly.STOPPED}),
        ends_it=True,
    ),
    "looks-for-no-marker": Mutant(
        words="a prepared transaction of PostgreSQL that is gone is taken for lost, whatever its marker says",
        injure=_looks_for_no_marker,
        wanted=frozenset({Anomaly.DOUBLED}),
        system="postgres",
        faults=((Fault.REPLY_LOST, Phase.DECIDING, "postgres", "commit"),),
    ),
    "weaker-guarantee": Mutant(
        words="the Kafka sink is at-least-once",
        injure=_weaker_guarantee,
        wanted=frozenset({Anomaly.DOUBLED}),
        system="kafka",
        faults=_KILLED_DECIDING,
    ),
    "refuses-its-own": Mutant(
        words="a batch that is decided already is taken for one of an old checkpoint",
        injure=_refuses_its_own,
        wanted=frozenset({Anomaly.STOPPED}),
        faults=_KILLED_FINISHING,
        ends_it=True,
    ),
    "asks-for-ever": Mutant(
        words="a lost transaction is asked for again and again, and never healed",
        injure=_asks_for_ever,
        wanted=frozenset({Anomaly.STUCK}),
        faults=((Fault.EXPIRED, Phase.FINISHING, "", ""),),
        ends_it=True,
    ),
    "log-overwrites": Mutant(
        words="a record of the decision log takes the place of another one",
        injure=_log_overwrites,
        wanted=frozenset({Anomaly.DOUBLED, Anomaly.STOPPED}),
        faults=((Fault.DRIVER_PAUSED, Phase.DECIDING, "", ""),),
        ends_it=True,
    ),
    "repeats-are-losses": Mutant(
        words="files that a killed driver has published are taken for lost, and written again",
        injure=_repeats_are_losses,
        wanted=frozenset({Anomaly.DOUBLED}),
        system="files",
        faults=((Fault.DRIVER_KILLED, Phase.SWEEPING_OWN, "", ""),),
    ),
    "shows-at-prepare": Mutant(
        words="the files writer publishes what it has prepared",
        injure=_shows_at_prepare,
        wanted=frozenset({Anomaly.EARLY}),
        system="files",
        faults=_KILLED_DECIDING,
    ),
    "loses-signs": Mutant(
        words="the PostgreSQL writer loses the sign of negative numbers",
        injure=_loses_signs,
        wanted=frozenset({Anomaly.UNEXPECTED}),
        system="postgres",
    ),
    "sweeps-by-committing": Mutant(
        words="what a killed driver has left open in PostgreSQL is committed and not aborted",
        injure=_sweeps_by_committing,
        wanted=frozenset({Anomaly.DOUBLED}),
        system="postgres",
        faults=_KILLED_DECIDING,
    ),
    "reads-at-random": Mutant(
        words="the source leaves rows out, other ones each time",
        injure=_reads_at_random,
        wanted=frozenset({Anomaly.STATE_DIFFERS}),
    ),
}

TOGETHER: Mapping[str, tuple[str, ...]] = {
    "wrong rows": ("drops-rows", "turns-rows-round", "rows-twice", "loses-signs"),
    "no answer": ("silence-is-loss", "looks-for-no-marker"),
    "killed when all is prepared": ("weaker-guarantee", "shows-at-prepare", "sweeps-by-committing"),
}
"""Mutants that one run brings to light: each shows in a system of its own, or by an anomaly of its own."""
