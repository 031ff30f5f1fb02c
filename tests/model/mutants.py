"""Deliberately wrong protocols: each takes one rule out. The search has to find what each of them comes to.

A mutant replaces entries of the coordinator's table, or single functions of the product, or the naming of ids.
``wanted`` asks for the damage itself (rows twice, rows missing) rather than for the broken rule, wherever one rule
alone can do damage; where another rule still holds it off, it asks for the first thing that must not happen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from model.log import Keys
from model.world import DRIVERS, SHORT_QUERY, Config, Driver, Fault, Lanes, Model, Task, Violation, World
from sparkonce.protocol import (
    claiming,
    closing,
    coordinator,
    deciding,
    finishing,
    healing,
    horizon,
    preparing,
    stopping,
    traces,
    view,
)
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.effects import StopReason
from sparkonce.protocol.outcomes import Outcome
from sparkonce.protocol.ownership import HELD, LanePool, Token, TransactionalId
from sparkonce.protocol.records import Amend, Commit, Void
from sparkonce.protocol.state import Phase, Putting, State, batch_of, finishing_of, record_of, token_of, writing_of
from sparkonce.protocol.traces import Trace
from sparkonce.protocol.view import Decision, Floor, LogView

TWICE = frozenset({Violation.TWICE})
UNDONE = frozenset({Violation.UNDONE})


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A wrong protocol and where it shows.

    Attributes:
        name: The trap or the rule, in words.
        config: The smallest world that shows it.
        wanted: What must be found.
        table: Entries of the coordinator's table to replace.
        patches: Attributes of the product to replace: owner, name, value.
        model: A model with other naming, sweeping or reading.
        keep: If not None, how many batches the log keeps, so that clean-up happens.
        tidy_every: After how many more batches it does.
    """

    name: str
    config: Config
    wanted: frozenset[Violation]
    table: Mapping[tuple[Phase, type], Any] = field(default_factory=dict)
    patches: tuple[tuple[Any, str, Any], ...] = ()
    model: type[Model] = Model
    keep: int | None = None
    tidy_every: int = 1
    records: int = horizon.KEEP_RECORDS

    @contextmanager
    def build(self) -> Iterator[Model]:
        """The model, as long as the product is patched."""
        with ExitStack() as stack:
            for owner, attribute, value in self.patches:
                stack.enter_context(mock.patch.object(owner, attribute, value))
            if self.keep is not None:
                stack.enter_context(cleaning_up(self.keep, self.tidy_every, self.records))
            yield self.model(self.config, {**coordinator.TRANSITIONS, **self.table}, self.wanted)


@contextmanager
def cleaning_up(keep: int, tidy_every: int = 1, records: int = horizon.KEEP_RECORDS) -> Iterator[None]:
    """Makes the log's clean-up happen after every batch, or every few, or at each claim but the first."""
    with (
        mock.patch.object(horizon, "KEEP_RECORDS", records),
        mock.patch.object(horizon, "KEEP_BATCHES", keep),
        mock.patch.object(horizon, "TIDY_EVERY_BATCHES", tidy_every),
    ):
        yield


_raised_to = LogView.raised_to


def _forgets_the_newest(view: LogView, token: Token) -> Floor:
    return replace(_raised_to(view, token), newest=None)


_superseded = stopping.superseded


def _forgets_what_the_floor_carries(state: State, why: str, _carried: Decision | None = None) -> Any:
    return _superseded(state, why)


# --- old copies -------------------------------------------------------------------------------------------------------

_not_in_log = traces.not_in_log


def _knows_no_commits(view: LogView, left: Sequence[Trace]) -> str:
    return _not_in_log(view, [replace(trace, committed=()) for trace in left])


def _knows_no_runs(view: LogView, left: Sequence[Trace]) -> str:
    return _not_in_log(view, [trace for trace in left if trace.token.position < view.end])


def _forgets_the_floor(view: LogView, left: Sequence[Trace]) -> str:
    return _not_in_log(replace(view, floor=Floor()), left)


def _knows_no_lanes(view: LogView, left: Sequence[Trace]) -> str:
    return _not_in_log(view, [replace(trace, lane=None) for trace in left])


def _knows_no_batches(view: LogView, left: Sequence[Trace]) -> str:
    return _not_in_log(view, [replace(trace, batch=None) for trace in left])


def _knows_no_order(view: LogView, left: Sequence[Trace]) -> str:
    return _not_in_log(view, [replace(trace, batch=None if trace.batch is None else 99) for trace in left])


# --- ids and lanes ----------------------------------------------------------------------------------------------------


def _id(sink: str, token: Token, worker: int, lane: int) -> str:
    return str(TransactionalId(prefix=sink, query=SHORT_QUERY, token=token, worker=f"{worker:012x}", lane=lane))


class WithoutToken(Model):
    """Ids say batch and slot; every run makes the same ones."""

    def name(self, task: Task, sink: str, lane: int) -> str:
        return _id(sink, Token(0, "0" * 8), task.slot, task.batch)

    def owns(self, name: str, sinks: tuple[str, ...], tokens: frozenset[Token]) -> bool:
        return True


class BySlotAndParity(Model):
    """First copies have ids of run, slot and parity of the batch, further copies ids of their own. No generation."""

    def name(self, task: Task, sink: str, lane: int) -> str:
        if task.copy:
            return _id(sink, task.token, 1000 + task.slot, 10 * task.batch + task.copy)
        return _id(sink, task.token, task.slot, task.batch % 2)


class BySlotAndBatch(Model):
    """Ids say run, slot and batch: used once, but by every copy."""

    def name(self, task: Task, sink: str, lane: int) -> str:
        return _id(sink, task.token, task.slot, task.batch)


class SweepsEverybody(Model):
    """A sweep takes every id of the query, of newer runs too."""

    def owns(self, name: str, sinks: tuple[str, ...], tokens: frozenset[Token]) -> bool:
        return bool(tokens)


class ReusesAtOnce(Model):
    """A lane of batch N is initialised again in batch N + 1."""

    def lend(self, pool: LanePool, batch: int) -> tuple[LanePool, int]:
        for lane, last_batch in enumerate(pool.lanes):
            if last_batch not in (HELD, batch):
                return pool._with(lane, HELD), lane
        return replace(pool, lanes=(*pool.lanes, HELD)), len(pool.lanes)


class LendsBurnt(Model):
    """A lane whose initialisation was not answered is lent again two batches later."""

    def burn(self, pool: LanePool, lane: int, batch: int) -> LanePool:
        return pool.give_back(lane, batch)


class KeepsProducers(Model):
    """A producer carries transaction after transaction under one epoch."""

    def give_back(self, mine: Lanes, held: tuple[int, str, int], batch: int) -> Lanes:
        return mine._replace(ready=(*mine.ready, held))


class AbortsWithV4(Model):
    """Sweeps with EndTxn v4, which leaves the epoch as it is."""

    abort_bumps = False


class CommitsDamaged(Model):
    """Commits whatever is open."""

    sees_damage = False


# --- the log ----------------------------------------------------------------------------------------------------------


class ForgetsFloor(Model):
    """The floor is not read again after a put."""

    def floor_after_put(self, keys: Keys) -> Floor:
        return Floor()


class LowersFloor(Model):
    """The log keeps one floor, and whoever comes last overwrites it."""

    floor_lowers = True


class KeepsOwnership(Model):
    """A restart in the same process goes on with the last run's state."""

    def state_of(self, world: World, run: int) -> State:
        driver = self.drivers.values[world[DRIVERS]]
        if run == 1 and isinstance(driver, Driver):
            return replace(self.states.values[driver.state], phase=Phase.IDLE)
        return super().state_of(world, run)


def _permissive(self: LogView, position: int, record: Commit | Amend) -> LogView:
    newest = self.newest_decision
    kept = self.decisions[:-1] if newest is not None and newest.batch == record.batch else self.decisions
    decision = Decision(
        position=position,
        token=record.token,
        query=record.query,
        batch=record.batch,
        offsets=record.offsets,
        handles=record.handles,
    )
    return replace(self, end=position + 1, decisions=(*kept, decision), claims_in_a_row=0)


_READERS_TRUST = (view.LogView, "_decided", _permissive)
"""Readers that take every decision as it comes. Without it they find the broken log before any row is doubled."""


def _decides_behind_newer(state: State, event: on.PutTaken) -> Any:
    if event.standing == record_of(state):
        return deciding.landed(state, on.PutLanded(position=event.position, floor=event.floor))
    after = state.view.apply(event.position, event.standing)
    return replace(state, view=after), do.Put(position=after.end, record=record_of(state))


def _decides_at_next_key(state: State, event: on.PutTaken) -> Any:
    after = replace(state.view, end=event.position + 1)
    return replace(state, view=after), do.Put(position=after.end, record=record_of(state))


def _absent_is_absent(state: State, event: on.PutUnknown) -> Any:
    verdict = do.Stop(reason=StopReason.UNKNOWN, message="the decision is not there")
    return stopping.abort(state, record_of(state).handles, verdict)


def _own_decision_is_foreign(state: State, event: on.PutTaken) -> Any:
    return stopping.superseded(state, "something stands there")


def _sweeps_before_claim(state: State, event: on.LogRead) -> Any:
    state = replace(state, view=event.view, phase=Phase.SWEEPING)
    return state, do.Sweep(runs=event.view.runs)


def _claims_after_sweep(state: State, event: on.Swept) -> Any:
    if state.token is None:
        return claiming.read(state, on.LogRead(view=state.view))
    return claiming.swept(state, event)


# --- deciding, finishing, healing -------------------------------------------------------------------------------------


def _finishes_first(state: State, event: on.Prepared) -> Any:
    if state.finishing is not None:
        return preparing.prepared(state, event)
    handles = tuple(sorted(event.handles))
    state = replace(state, phase=Phase.FINISHING, writing=replace(writing_of(state), handles=handles))
    return state, do.Finish(batch=batch_of(state).number, handles=handles, attempt=0)


def _decides_afterwards(state: State, event: on.Finished) -> Any:
    if state.finishing is not None:
        return finishing.finished(state, event)
    return preparing.decide(state, Commit, writing_of(state).handles)


def _drops_a_handle(state: State, event: on.Prepared) -> Any:
    return preparing.prepared(state, replace(event, handles=event.handles[:-1]))


def _passes_over(outcome: Outcome, taken_for: Outcome) -> Any:
    def handler(state: State, event: on.Finished) -> Any:
        outcomes = tuple(taken_for if one is outcome else one for one in event.outcomes)
        return finishing.finished(state, replace(event, outcomes=outcomes))

    return handler


def _aborts_before_it_is_void(state: State, event: on.Finished) -> Any:
    after, effect = finishing.finished(state, event)
    if isinstance(effect, do.Put) and isinstance(effect.record, Void):
        known = finishing_of(after)
        return finishing.finish(after, replace(known.decision, void=effect.record.void), known.pending)
    return after, effect


def _makes_all_void(state: State, event: on.Finished) -> Any:
    after, effect = finishing.finished(state, event)
    if isinstance(effect, do.Put) and isinstance(effect.record, Void):
        record = replace(effect.record, void=tuple(handle.key for handle in effect.record.handles))
        known = replace(finishing_of(after), committed=frozenset())
        return replace(after, putting=Putting(record=record), finishing=known), replace(effect, record=record)
    return after, effect


def _judges_amendment_alone(state: State, event: on.PutLanded) -> Any:
    before, record = state.finishing, record_of(state)
    if not isinstance(record, Amend) or before is None or not before.committed:
        return deciding.landed(state, event)
    state, effect = deciding.landed(state, event)
    known = finishing_of(state)
    pending = tuple(handle for handle in known.pending if handle.key in before.lost)
    known = replace(known, decision=replace(known.decision, handles=pending), pending=pending)
    return replace(state, finishing=known), replace(effect, handles=pending)


def _judges_without_reading(state: State, event: on.LogRead) -> Any:
    return finishing.judge_loss(state, on.LogRead(view=state.view))


def _writes_decided_again(state: State) -> Any:
    refusal = claiming.refusal(state)
    if refusal is not None:
        return replace(state, phase=Phase.STOPPED), refusal
    if not state.swept:
        older = tuple(run for run in state.view.runs if run.token < token_of(state))
        return replace(state, phase=Phase.SWEEPING), do.Sweep(runs=older)
    return preparing.write(state)


def _overrules(state: State, _event: on.Objected) -> Any:
    return preparing.validated(state, on.Validated())


def _concludes_before_all_is_final(state: State, event: on.Finished) -> Any:
    after, effect = finishing.finished(state, event)
    waits = isinstance(effect, do.Finish) and effect.attempt > 0
    return closing.conclude(after) if waits else (after, effect)


def _reports_before_it_finishes(state: State, event: on.PutLanded) -> Any:
    after, effect = deciding.landed(state, event)
    if not isinstance(effect, do.Finish):
        return after, effect
    return replace(after, phase=Phase.REPORTING), do.Report(offsets=batch_of(after).offsets)


def _finishes_after_its_report(state: State, event: on.Reported) -> Any:
    known = finishing_of(state)
    if not known.pending:
        return closing.reported(state, event)
    return finishing.finish(state, known.decision, known.pending)


def _undoes_and_decides(state: State, event: on.Unready) -> Any:
    """Aborts what was prepared, and decides it all the same."""
    writing = writing_of(state)
    if not event.undo or not writing.handles:
        return preparing.unready(state, event)
    _, put = preparing.validated(state, on.Validated())
    state = replace(state, phase=Phase.ABORTING, then=put)
    return state, do.Abort(handles=writing.handles)


def _decides_what_it_has_undone(state: State, event: on.Aborted | on.Swept) -> Any:
    if isinstance(state.then, do.Put):
        return preparing.validated(replace(state, then=None), on.Validated())
    return stopping.aborted(state, event)


_TIMEOUTS = frozenset({Fault.TIMEOUT})
_DAMAGE = frozenset({Fault.DAMAGE})

MUTANTS = (
    Mutant(
        name="trap 1: ids without the run",
        config=Config(runs=2),
        wanted=TWICE,
        model=WithoutToken,
    ),
    Mutant(
        name="trap 2: a retry wins, the first copy wakes two batches later on the same id",
        config=Config(runs=1, batches=3, faults=1, kinds=frozenset({Fault.COPY})),
        wanted=TWICE,
        model=BySlotAndParity,
    ),
    Mutant(
        name="trap 3: two copies of a slot share an id",
        config=Config(runs=1, faults=1, kinds=frozenset({Fault.COPY})),
        wanted=TWICE,
        model=BySlotAndBatch,
    ),
    Mutant(
        name="trap 4: a sweep of newer runs",
        config=Config(runs=2),
        wanted=TWICE,
        model=SweepsEverybody,
    ),
    Mutant(
        name="trap 5: a newer claim is ignored",
        config=Config(runs=2),
        wanted=TWICE,
        table={(Phase.DECIDING, on.PutTaken): _decides_behind_newer},
        patches=(_READERS_TRUST,),
    ),
    Mutant(
        name="trap 6: a lane is used again one batch later, and a late starter takes the fence for a loss",
        config=Config(runs=2, batches=2),
        wanted=TWICE,
        model=ReusesAtOnce,
    ),
    Mutant(
        name="trap 7: a put at a key that clean-up has freed",
        config=Config(runs=2, batches=2, cleans_up=True),
        wanted=TWICE,
        model=ForgetsFloor,
        keep=1,
    ),
    Mutant(
        name="a claim's clean-up forgets the newest decision",
        config=Config(runs=2, cleans_up=True),
        wanted=TWICE,
        patches=((LogView, "raised_to", _forgets_the_newest),),
        keep=100,
        records=1,
    ),
    Mutant(
        name="a deposed run undoes a decision that a floor has taken in",
        config=Config(runs=2, cleans_up=True),
        wanted=frozenset({Violation.UNDONE}),
        patches=((stopping, "superseded", _forgets_what_the_floor_carries),),
        keep=100,
        records=1,
    ),
    Mutant(
        name="trap 8: an amendment judged alone",
        config=Config(runs=1, slots=2, faults=2, kinds=_TIMEOUTS, parts=1),
        wanted=TWICE,
        table={(Phase.DECIDING, on.PutLanded): _judges_amendment_alone},
    ),
    Mutant(
        name="trap 9: an unknown put read as absent",
        config=Config(runs=1, faults=1, kinds=frozenset({Fault.PUT})),
        wanted=UNDONE,
        table={(Phase.DECIDING, on.PutUnknown): _absent_is_absent},
    ),
    Mutant(
        name="trap 10: a refused put followed by the next key",
        config=Config(runs=2),
        wanted=TWICE,
        table={(Phase.DECIDING, on.PutTaken): _decides_at_next_key},
        patches=(_READERS_TRUST,),
    ),
    Mutant(
        name="trap 10, with readers that check the log",
        config=Config(runs=2),
        wanted=frozenset({Violation.STRANDED}),
        table={(Phase.DECIDING, on.PutTaken): _decides_at_next_key},
    ),
    Mutant(
        name="trap 11: ownership kept across a restart",
        config=Config(runs=2, batches=2),
        wanted=TWICE,
        model=KeepsOwnership,
    ),
    Mutant(
        name="a commit before the decision",
        config=Config(runs=2),
        wanted=TWICE,
        table={(Phase.WRITING, on.Prepared): _finishes_first, (Phase.FINISHING, on.Finished): _decides_afterwards},
    ),
    Mutant(
        name="an abort after the decision",
        config=Config(runs=1, faults=1, kinds=frozenset({Fault.PUT})),
        wanted=UNDONE,
        table={(Phase.RESOLVING, on.PutTaken): _own_decision_is_foreign},
    ),
    Mutant(
        name="a handle dropped from the decision",
        config=Config(runs=1, slots=2),
        wanted=frozenset({Violation.MISSING}),
        table={(Phase.WRITING, on.Prepared): _drops_a_handle},
    ),
    Mutant(
        name="a floor that a paused driver lowers",
        config=Config(runs=2, batches=4, cleans_up=True, parts=1),
        wanted=TWICE,
        model=LowersFloor,
        keep=1,
    ),
    Mutant(
        name="rule 2: a sweep before the claim",
        config=Config(runs=2),
        wanted=TWICE,
        table={(Phase.READING, on.LogRead): _sweeps_before_claim, (Phase.SWEEPING, on.Swept): _claims_after_sweep},
    ),
    Mutant(
        name="rule 3: a decided batch is written again",
        config=Config(runs=2),
        wanted=TWICE,
        patches=((claiming, "judge_batch", _writes_decided_again), _READERS_TRUST),
    ),
    Mutant(
        name="rule 4: UNKNOWN is healed",
        config=Config(runs=1, faults=1, kinds=frozenset({Fault.COMMIT}), doubt=Outcome.UNKNOWN),
        wanted=TWICE,
        table={(Phase.FINISHING, on.Finished): _passes_over(Outcome.UNKNOWN, Outcome.LOST)},
    ),
    Mutant(
        name="rule 5: LOST is passed over",
        config=Config(runs=1, faults=1, kinds=_TIMEOUTS),
        wanted=frozenset({Violation.MISSING}),
        table={(Phase.FINISHING, on.Finished): _passes_over(Outcome.LOST, Outcome.COMMITTED)},
    ),
    Mutant(
        name="rule 8: one epoch for many transactions",
        config=Config(runs=1, batches=2, faults=1, kinds=frozenset({Fault.COMMIT})),
        wanted=frozenset({Violation.TORN}),
        model=KeepsProducers,
    ),
    Mutant(
        name="rule 8: a lane whose initialisation was not answered is lent again",
        config=Config(runs=1, batches=3, faults=1, kinds=frozenset({Fault.INIT})),
        wanted=TWICE,
        model=LendsBurnt,
    ),
    Mutant(
        name="rule 9: an abort that leaves the epoch as it is",
        config=Config(runs=2),
        wanted=frozenset({Violation.SHARED_EPOCH}),
        model=AbortsWithV4,
    ),
    Mutant(
        name="rule 10: what has lost rows is committed",
        config=Config(runs=1, faults=1, kinds=_DAMAGE),
        wanted=frozenset({Violation.TORN}),
        model=CommitsDamaged,
    ),
    Mutant(
        name="rule 10: what has lost rows is aborted before it is void",
        config=Config(runs=1, faults=1, kinds=_DAMAGE),
        wanted=UNDONE,
        table={(Phase.FINISHING, on.Finished): _aborts_before_it_is_void},
    ),
    Mutant(
        name="rule 10: all of the batch is void",
        config=Config(runs=1, slots=2, faults=1, kinds=_DAMAGE, parts=1),
        wanted=frozenset({Violation.ILLEGAL_STOP}),
        table={(Phase.FINISHING, on.Finished): _makes_all_void},
    ),
    Mutant(
        name="healing without comparing",
        config=Config(runs=1, slots=2, faults=1, kinds=_TIMEOUTS, deterministic=False),
        wanted=frozenset({Violation.MIXED}),
        patches=((healing, "_differing", lambda *_: ()), (healing, "_where_lost", lambda lost, *_: frozenset(lost))),
    ),
    Mutant(
        name="an objection is overruled",
        config=Config(runs=1, faults=1, kinds=frozenset({Fault.OBJECTION})),
        wanted=frozenset({Violation.OVERRULED}),
        table={(Phase.VALIDATING, on.Objected): _overrules},
    ),
    Mutant(
        name="what was undone to be written again is decided",
        config=Config(runs=1, faults=1, kinds=frozenset({Fault.AGAIN})),
        wanted=UNDONE,
        table={
            (Phase.VALIDATING, on.Unready): _undoes_and_decides,
            (Phase.ABORTING, on.Aborted): _decides_what_it_has_undone,
        },
    ),
    Mutant(
        name="sinks are told before all is final",
        config=Config(runs=1, faults=1, kinds=frozenset({Fault.COMMIT})),
        wanted=frozenset({Violation.EARLY}),
        table={(Phase.FINISHING, on.Finished): _concludes_before_all_is_final},
    ),
    Mutant(
        name="positions are reported before the batch is finished",
        config=Config(runs=1),
        wanted=frozenset({Violation.EARLY}),
        table={
            (Phase.DECIDING, on.PutLanded): _reports_before_it_finishes,
            (Phase.REPORTING, on.Reported): _finishes_after_its_report,
        },
    ),
    Mutant(
        name="old copies: only runs are held against the log",
        config=Config(runs=1),
        wanted=frozenset({Violation.TAKEN_FOR_NEW}),
        patches=((traces, "not_in_log", _knows_no_commits),),
    ),
    Mutant(
        name="old copies: only commits are held against the log",
        config=Config(runs=2, batches=2, parts=1),
        wanted=frozenset({Violation.TAKEN_FOR_NEW}),
        patches=((traces, "not_in_log", _knows_no_runs),),
    ),
    Mutant(
        name="old copies: what the log has forgotten is held against it",
        config=Config(runs=1, batches=3, parts=1, cleans_up=True),
        wanted=frozenset({Violation.TAKEN_FOR_OLD}),
        patches=((traces, "not_in_log", _forgets_the_floor),),
        keep=1,
    ),
    Mutant(
        name="old copies: lanes are not looked at",
        config=Config(runs=1, batches=8, parts=1, cleans_up=True),
        wanted=frozenset({Violation.TAKEN_FOR_NEW}),
        patches=((traces, "not_in_log", _knows_no_lanes),),
        keep=2,
        tidy_every=3,
    ),
    Mutant(
        name="old copies: batches are not looked at",
        config=Config(runs=1, batches=7, parts=1, cleans_up=True, faults=1, kinds=frozenset({Fault.COPY})),
        wanted=frozenset({Violation.TAKEN_FOR_NEW}),
        patches=((traces, "not_in_log", _knows_no_batches),),
        keep=2,
        tidy_every=3,
    ),
    Mutant(
        name="old copies: each batch is taken for one behind the newest",
        config=Config(runs=1, batches=3, parts=1, cleans_up=True),
        wanted=frozenset({Violation.TAKEN_FOR_OLD}),
        patches=((traces, "not_in_log", _knows_no_order),),
        keep=1,
    ),
)

SURVIVORS = (
    Mutant(
        name="trap 6: a loss judged without reading the log",
        config=Config(runs=2, faults=2, kinds=frozenset({Fault.TIMEOUT, Fault.COMMIT})),
        wanted=frozenset(Violation),
        table={(Phase.JUDGING, on.LogRead): _judges_without_reading},
    ),
)
"""Rules that another rule makes up for, as long as that one stands.

Since a lane of batch N is not initialised before batch N + 1 is decided, only a real loss reads as LOST; and since an
amendment is put at the key after the last record read, a run that misjudges it finds the key taken.
"""

__all__ = ["HELD", "MUTANTS", "SURVIVORS", "Mutant", "cleaning_up"]
