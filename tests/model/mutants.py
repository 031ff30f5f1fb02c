"""Wrong protocols, each with one rule removed. The search has to find the consequence of each.

``wanted`` is the damage itself (duplicate rows, missing rows) rather than the broken rule, if removing one rule
suffices for damage. If another rule still prevents the damage, ``wanted`` is the first violation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from unittest import mock

from model.log import Keys
from model.world import DRIVERS, SHORT_QUERY, Config, Driver, Fault, Lanes, Model, Task, Violation, World
from mutants.operators import wrong
from sparkonce.protocol import horizon
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.ownership import LanePool, Token, TransactionalId
from sparkonce.protocol.state import Phase, State
from sparkonce.protocol.view import Floor


@dataclass(frozen=True)
class Mutant:
    """A wrong protocol and where it shows.

    Attributes:
        name: The trap or the rule, in words.
        wanted: What must be found; None for anything.
        config: The smallest world that shows it.
        rule: Its name in `mutants.rules`; empty if only the model differs.
        model: A model with other names, lanes or brokers.
        keep: If not None, how many batches the log retains, so that clean-up happens.
        tidy_every: The number of additional batches after which clean-up happens.
        records: The number of records from which on a claim cleans up.
    """

    name: str
    wanted: Violation | None
    config: Config
    rule: str = ""
    model: type[Model] = Model
    keep: int | None = None
    tidy_every: int = 1
    records: int = horizon.KEEP_RECORDS

    @contextmanager
    def build(self) -> Iterator[Model]:
        """Patches the product with the wrong rule inside the block."""
        with ExitStack() as stack:
            if self.rule:
                stack.enter_context(wrong(self.rule))
            if self.keep is not None:
                stack.enter_context(cleaning_up(self.keep, self.tidy_every, self.records))
            yield self.model(self.config, frozenset(Violation) if self.wanted is None else frozenset({self.wanted}))


@contextmanager
def cleaning_up(keep: int, tidy_every: int = 1, records: int = horizon.KEEP_RECORDS) -> Iterator[None]:
    """Makes the log's clean-up happen after every batch, or every few, or at each claim except the first."""
    with (
        mock.patch.object(horizon, "KEEP_RECORDS", records),
        mock.patch.object(horizon, "KEEP_BATCHES", keep),
        mock.patch.object(horizon, "TIDY_EVERY_BATCHES", tidy_every),
    ):
        yield


def _id(sink: str, token: Token, worker: int, lane: int) -> str:
    return str(TransactionalId(prefix=sink, query=SHORT_QUERY, token=token, worker=f"{worker:012x}", lane=lane))


class WithoutToken(Model):
    """Ids consist of batch and slot, so every run uses the same ones."""

    def name(self, task: Task, sink: str, lane: int) -> str:
        return _id(sink, Token(0, "0" * 8), task.slot, task.batch)

    def owns(self, name: str, sinks: tuple[str, ...], tokens: frozenset[Token]) -> bool:
        return True


class BySlotAndParity(Model):
    """First attempts have ids of run, slot and parity of the batch, further attempts their own. No generation."""

    def name(self, task: Task, sink: str, lane: int) -> str:
        if task.copy:
            return _id(sink, task.token, 1000 + task.slot, 10 * task.batch + task.copy)
        return _id(sink, task.token, task.slot, task.batch % 2)


class BySlotAndBatch(Model):
    """Ids consist of run, slot and batch: used once, but by every task attempt."""

    def name(self, task: Task, sink: str, lane: int) -> str:
        return _id(sink, task.token, task.slot, task.batch)


class LendsBurnt(Model):
    """A lane whose initialization got no answer is reused two batches later."""

    def burn(self, pool: LanePool, lane: int, batch: int) -> LanePool:
        return pool.give_back(lane, batch)


class KeepsProducers(Model):
    """A producer writes several transactions under one epoch."""

    def give_back(self, mine: Lanes, held: tuple[int, str, int], batch: int) -> Lanes:
        return mine._replace(ready=(*mine.ready, held))


class AbortsWithV4(Model):
    """Sweeps with EndTxn v4, which leaves the epoch unchanged."""

    abort_bumps = False


class CommitsDamaged(Model):
    """Commits everything that is open."""

    sees_damage = False


class ForgetsFloor(Model):
    """The floor is not read again after a put."""

    def floor_after_put(self, keys: Keys) -> Floor:
        return Floor()


class LowersFloor(Model):
    """The log has only one floor, which the last writer overwrites."""

    floor_lowers = True


class KeepsOwnership(Model):
    """A restart in the same process continues with the last run's state."""

    def state_of(self, world: World, run: int) -> State:
        driver = self.drivers.values[world[DRIVERS]]
        if run == 1 and isinstance(driver, Driver):
            return replace(self.states.values[driver.state], phase=Phase.IDLE)
        return super().state_of(world, run)


def _one_run(*kinds: Fault, **more: object) -> Config:
    return replace(Config(runs=1, faults=1, kinds=frozenset(kinds)), **more)


_TWO_RUNS = Config(runs=2)
_CLEANED = Config(runs=2, cleans_up=True)

MUTANTS = (
    Mutant("trap 1: ids without the run", Violation.TWICE, _TWO_RUNS, model=WithoutToken),
    Mutant(
        "trap 2: a retry wins, the first copy wakes two batches later on the same id",
        Violation.TWICE,
        _one_run(Fault.COPY, batches=3),
        model=BySlotAndParity,
    ),
    Mutant("trap 3: two copies of a slot share an id", Violation.TWICE, _one_run(Fault.COPY), model=BySlotAndBatch),
    Mutant("trap 4: a sweep of newer runs", Violation.TWICE, _TWO_RUNS, "a sweep takes newer runs' transactions, too"),
    Mutant("trap 5: a newer claim is ignored", Violation.TWICE, _TWO_RUNS, "a newer claim is ignored"),
    Mutant(
        "trap 6: a lane is used again one batch later, and a late starter takes the fence for a loss",
        Violation.TWICE,
        Config(runs=2, batches=2),
        "a lane is lent again in the next batch",
    ),
    Mutant(
        "trap 7: a put at a key that clean-up has freed",
        Violation.TWICE,
        Config(runs=2, batches=2, cleans_up=True),
        model=ForgetsFloor,
        keep=1,
    ),
    Mutant(
        "a claim's clean-up forgets the newest decision",
        Violation.TWICE,
        _CLEANED,
        "a claim's clean-up forgets the newest decision",
        keep=100,
        records=1,
    ),
    Mutant(
        "a deposed run undoes a decision that a floor has taken in",
        Violation.UNDONE,
        _CLEANED,
        "handles that the floor's decision names are aborted",
        keep=100,
        records=1,
    ),
    Mutant(
        "trap 8: an amendment judged alone",
        Violation.TWICE,
        _one_run(Fault.TIMEOUT, slots=2, faults=2, parts=1),
        "an amendment is judged alone",
    ),
    Mutant(
        "trap 9: an unknown put read as absent",
        Violation.UNDONE,
        _one_run(Fault.PUT),
        "a put without an answer is read as absent",
    ),
    Mutant(
        "trap 10: a refused put followed by the next key",
        Violation.TWICE,
        _TWO_RUNS,
        "a refused put is followed by the next key, and readers trust",
    ),
    Mutant(
        "trap 10, with readers that check the log",
        Violation.STRANDED,
        _TWO_RUNS,
        "a refused put is followed by the next key",
    ),
    Mutant(
        "trap 11: ownership kept across a restart", Violation.TWICE, Config(runs=2, batches=2), model=KeepsOwnership
    ),
    Mutant("a commit before the decision", Violation.TWICE, _TWO_RUNS, "a commit before the decision"),
    Mutant(
        "an abort after the decision",
        Violation.UNDONE,
        _one_run(Fault.PUT),
        "a decision of its own is taken for somebody else's, and undone",
    ),
    Mutant(
        "a handle dropped from the decision",
        Violation.MISSING,
        Config(runs=1, slots=2),
        "a handle is dropped from the decision",
    ),
    Mutant(
        "a floor that a paused driver lowers",
        Violation.TWICE,
        Config(runs=2, batches=4, cleans_up=True, parts=1),
        model=LowersFloor,
        keep=1,
    ),
    Mutant("rule 2: a sweep before the claim", Violation.TWICE, _TWO_RUNS, "a run sweeps before it claims"),
    Mutant("rule 3: a decided batch is written again", Violation.TWICE, _TWO_RUNS, "a decided batch is written again"),
    Mutant(
        "rule 4: UNKNOWN is healed",
        Violation.TWICE,
        _one_run(Fault.COMMIT, doubt=Outcome.UNKNOWN),
        "an answer that nobody knows is read as a loss",
    ),
    Mutant("rule 5: LOST is passed over", Violation.MISSING, _one_run(Fault.TIMEOUT), "a loss is passed over"),
    Mutant(
        "rule 8: one epoch for many transactions",
        Violation.TORN,
        _one_run(Fault.COMMIT, batches=2),
        model=KeepsProducers,
    ),
    Mutant(
        "rule 8: a lane whose initialisation was not answered is lent again",
        Violation.TWICE,
        _one_run(Fault.INIT, batches=3),
        model=LendsBurnt,
    ),
    Mutant("rule 9: an abort that leaves the epoch as it is", Violation.SHARED_EPOCH, _TWO_RUNS, model=AbortsWithV4),
    Mutant("rule 10: what has lost rows is committed", Violation.TORN, _one_run(Fault.DAMAGE), model=CommitsDamaged),
    Mutant(
        "rule 10: what has lost rows is aborted before it is void",
        Violation.UNDONE,
        _one_run(Fault.DAMAGE),
        "what has lost rows is aborted before it is void",
    ),
    Mutant(
        "rule 10: all of the batch is void",
        Violation.ILLEGAL_STOP,
        _one_run(Fault.DAMAGE, slots=2, parts=1),
        "all of a batch is void",
    ),
    Mutant(
        "healing without comparing",
        Violation.MIXED,
        _one_run(Fault.TIMEOUT, slots=2, deterministic=False),
        "what is lost is written again without comparing",
    ),
    Mutant("an objection is overruled", Violation.OVERRULED, _one_run(Fault.OBJECTION), "an objection is overruled"),
    Mutant(
        "what was undone to be written again is decided",
        Violation.UNDONE,
        _one_run(Fault.AGAIN),
        "what was undone to be written again is decided",
    ),
    Mutant(
        "sinks are told before all is final",
        Violation.EARLY,
        _one_run(Fault.COMMIT),
        "sinks are told before all is final",
    ),
    Mutant(
        "positions are reported before the batch is finished",
        Violation.EARLY,
        Config(runs=1),
        "positions are reported before the batch is finished",
    ),
    Mutant(
        "old copies: only runs are held against the log",
        Violation.TAKEN_FOR_NEW,
        Config(runs=1),
        "only runs are held against the log",
    ),
    Mutant(
        "old copies: only commits are held against the log",
        Violation.TAKEN_FOR_NEW,
        Config(runs=2, batches=2, parts=1),
        "only commits are held against the log",
    ),
    Mutant(
        "old copies: what the log has forgotten is held against it",
        Violation.TAKEN_FOR_OLD,
        Config(runs=1, batches=3, parts=1, cleans_up=True),
        "what the log has forgotten is held against it",
        keep=1,
    ),
    Mutant(
        "old copies: lanes are not looked at",
        Violation.TAKEN_FOR_NEW,
        Config(runs=1, batches=8, parts=1, cleans_up=True),
        "lanes are not held against the log",
        keep=2,
        tidy_every=3,
    ),
    Mutant(
        "old copies: batches are not looked at",
        Violation.TAKEN_FOR_NEW,
        _one_run(Fault.COPY, batches=7, parts=1, cleans_up=True),
        "batches are not held against the log",
        keep=2,
        tidy_every=3,
    ),
    Mutant(
        "old copies: each batch is taken for one behind the newest",
        Violation.TAKEN_FOR_OLD,
        Config(runs=1, batches=3, parts=1, cleans_up=True),
        "each batch is taken for one behind the newest",
        keep=1,
    ),
)

SURVIVOR = Mutant(
    "trap 6: a loss judged without reading the log",
    None,
    Config(runs=2, faults=2, kinds=frozenset({Fault.TIMEOUT, Fault.COMMIT})),
    "a loss is judged without reading the log",
)
"""A rule that is backed up by another one.

A lane of batch N is not initialized before batch N + 1 is decided, so only a real loss reads as LOST; and an amendment
is put at the key after the last record read, so a run that misjudges a loss finds the key taken.
"""
