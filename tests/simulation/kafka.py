"""Kafka's transaction coordinator, one for all ids, which may move from one of two brokers to the other.

- Initializing an id aborts what is open under it and raises its epoch, by two if something was open.
- A record under an older epoch is fenced. One under the current epoch, after the end of a transaction, opens a second
  one under the same epoch (version 1, and version 2 after EndTxn v4).
- EndTxn (commit) leaves the epoch as it is, up to v4. EndTxn (abort), v5, raises it, even if nothing is open.
- Version 1 has no v5: the product aborts by initializing the id again, which compares only the producer id while a
  transaction is open. With version 2, a driver must not do so: EndTxn v5 is exact in its epoch.
- A timeout aborts and raises the epoch.
- Retention deletes rows of open transactions, but not during a commit or between its check and the commit, because
  brokers look for deletable rows only every few minutes. A commit succeeds with the remaining rows.
- The markers that unblock readers are written a little later; until then, the coordinator asks for a retry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from simulation import wire
from simulation.engine import NoAnswerError, RefusedError
from simulation.oracle import Violation
from simulation.producers import ModelWorker, PoolWriter
from simulation.systems import System, Writer
from sparkonce.sinks.kafka.committer import KafkaCommitter, RetentionCheck
from sparkonce.sinks.kafka.outcomes import TRANSACTIONAL_ID_NOT_FOUND, BrokerAnswer, Description, KafkaTransaction
from sparkonce.sinks.kafka.transaction_client import TransactionClient

if TYPE_CHECKING:
    from simulation.engine import Party, Simulation
    from simulation.oracle import Key
    from simulation.spark import Process
    from sparkonce.protocol.handles import Finished, Handle
    from sparkonce.sink import Owner

BROKERS = (1, 2)
PRODUCER_ID = 1
_SLOW = 0.1
"""How often an initialization is not answered in time, in worlds where requests may be late."""
UNSUPPORTED_VERSION = 35
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
CONCURRENT_TRANSACTIONS = 51
_NONE = BrokerAnswer(0)
_TOPIC = wire.Reply(topic="t", partitions=[0])
"""All write to one partition, of which only the deletion of rows is modeled."""


class Id:
    """A transactional id, as its coordinator knows it."""

    __slots__ = ("batch", "begun_ms", "damaged", "epoch", "name", "parts", "slot", "state", "writer")

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.state = "Empty"
        self.batch, self.slot, self.parts, self.begun_ms = -1, -1, 0, -1
        self.writer: Writer | None = None
        self.damaged = False


class ModelRetention(RetentionCheck):
    """The product's committer, except for what the partition leaders report, which is one request here."""

    def __init__(self, kafka: Kafka, client: TransactionClient) -> None:
        super().__init__(client)
        self._kafka = kafka

    def held_back(
        self, begun_ms: Mapping[KafkaTransaction, int], deadline_s: float
    ) -> dict[KafkaTransaction, Finished]:
        return super().held_back(begun_ms, deadline_s) if self._kafka.deletes_rows else {}

    def find_damaged(
        self, views: Sequence[Description], deadline_s: float
    ) -> tuple[set[KafkaTransaction], Mapping[tuple[str, int], BrokerAnswer]]:
        if not views:
            return set(), {}

        def complete() -> set[KafkaTransaction]:
            known = {view.transaction: self._kafka.ids[view.transaction.transactional_id] for view in views}
            return {one for one, found in known.items() if found.damaged and found.epoch == one.epoch}

        try:
            found: set[KafkaTransaction] = self._kafka.simulation.request(
                (self._kafka.called, "says whether it has all rows"), complete
            )
        except (NoAnswerError, RefusedError) as error:
            return set(), {(_TOPIC.topic, 0): BrokerAnswer(None, str(error))}
        return found, {}


class Kafka(System):
    """A cluster.

    Args:
        simulation: The schedule.
        name: ``kafka-v1`` or ``kafka-v2``.

    Attributes:
        broker: The broker that has the coordinator.
        is_known: True if somebody has looked it up since it moved.
        moves: How often it has moved.
        late: The ids of initializations that nobody waits for anymore, and that have not arrived.
        overdue: The late initializations whose id somebody else has initialized since.
        workers: The processes that have written.
    """

    life_s = 600.0
    opens_early = True
    commit_bumps = False

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.version = 2 if name == "kafka-v2" else 1
        self.ids: dict[str, Id] = {}
        self.broker = BROKERS[0]
        self.is_known = False
        self.moves = 0
        self.late: list[str] = []
        self.overdue: list[str] = []
        self.workers: list[ModelWorker] = []
        simulation.events.append(self.write_markers)
        if "server restarted" in simulation.config.faults:
            simulation.events.append(self.move)
        if "paused" in simulation.config.faults:
            simulation.events.append(self.keep_a_task_waiting)
        if simulation.config.keep_ready:
            simulation.events.append(self.grow_old)
        self.at_commit: list[tuple[Party | None, Sequence[Handle]]] = []
        self.deletes_rows = "rows deleted" in simulation.config.faults
        if self.deletes_rows:
            simulation.events.append(self.delete_rows)

    def committer(self) -> KafkaCommitter:
        made = KafkaCommitter.__new__(KafkaCommitter)
        made._client = TransactionClient(self, connections=1)
        made._name = self.name
        made._attempt_timeout_s = 10.0
        made._retention = ModelRetention(self, made._client)
        made._described = None
        made._leaders = SimpleNamespace(held_back=lambda *_: {})  # each partition has one
        if self.deletes_rows:
            made.commit = self.watched(made.commit)
        return made

    def watched(self, commit: Callable[[Sequence[Handle]], Sequence[Finished]]) -> Any:
        """Records what is being committed."""

        def watch(handles: Sequence[Handle]) -> Sequence[Finished]:
            under_way = (self.simulation.current, handles)
            self.at_commit.append(under_way)
            try:
                return commit(handles)
            finally:
                self.at_commit.remove(under_way)

        return watch

    def delete_rows(self) -> Callable[[], None] | None:
        """Deletes rows of an open transaction; returns None if there is none that is not being committed."""
        busy = {
            one["transactional_id"]
            for party, handles in self.at_commit
            if party is None or not party.dead
            for one in handles
        }
        busy |= {what[2] for what, _ in self.simulation.flights if what[:2] == (self.called, "commits")}
        whole = [
            one for one in self.ids.values() if one.state == "Ongoing" and not one.damaged and one.name not in busy
        ]

        def delete(one: Id) -> None:
            self.simulation.say(self.called, "deletes rows of", one.name, one.epoch)
            self.simulation.note("rows deleted")
            one.damaged = True

        return self.one_of(whole, delete)

    def writer(self, owner: Owner, process: Process, batch: int, slot: int, copy: int) -> Writer:
        return PoolWriter(self, owner, process, batch, slot)

    def key(self, handle: Handle) -> Key:
        return (self.name, handle["transactional_id"], handle["epoch"])

    def lingering(self) -> list[Key]:
        return [(self.name, one.name, one.epoch) for one in self.ids.values() if one.state == "Ongoing"]

    def expire(self) -> Callable[[], None] | None:
        return self.one_of([one for one in self.ids.values() if one.state == "Ongoing"], self.time_out)

    def time_out(self, one: Id) -> None:
        """Aborts the transaction of this id because of its age."""
        self.simulation.say(self.called, "times out", one.name, one.epoch)
        self.simulation.oracle.lost((self.name, one.name, one.epoch))
        one.epoch += 1
        one.state = "CompleteAbort"

    def age(self) -> None:
        """Occasionally checks for transactions that have been open too long, which may time out."""
        for one in self.ids.values():
            too_old = self.simulation.time_ms(one.batch) - one.begun_ms >= self.life_s * 1000
            if one.state == "Ongoing" and too_old and self.simulation.dice.pick(2):
                self.time_out(one)

    def write_markers(self) -> Callable[[], None] | None:
        """Writes the last marker of a commit; None if none is missing."""

        def write(one: Id) -> None:
            self.simulation.say(self.called, "has written the markers of", one.name, one.epoch)
            one.state = "CompleteCommit"

        return self.one_of([one for one in self.ids.values() if one.state == "PrepareCommit"], write)

    def is_slow(self) -> bool:
        """Decides whether an initialization is not answered in time: it takes longer than other requests."""
        simulation = self.simulation
        if simulation.peace or "request late" not in simulation.config.faults or not simulation.dice.chance(_SLOW):
            return False
        simulation.note("slow")
        return True

    def initialises_late(self, name: str) -> None:
        """An initialization that is not answered in time. It matters if somebody else initializes the id later."""
        self.simulation.say(self.called, "initialises", name, "-> request late")
        self.late.append(name)

    def overtake(self, name: str) -> None:
        """A late initialization may arrive when its id is in use again, at worst just before a commit."""
        if name in self.overdue and not self.simulation.peace and self.simulation.dice.pick(2):
            self.overdue.remove(name)
            self.simulation.say(self.called, "arrives late: initialises", name)
            self.initialise(name)

    def move(self) -> Callable[[], None] | None:
        """Stops the coordinator's broker, and lets the other one take over. None if nobody knew where it was."""

        def take_over() -> None:
            (self.broker,) = set(BROKERS) - {self.broker}
            self.is_known = False
            self.moves += 1
            self.simulation.say(self.called, "the coordinator moves to broker", self.broker)
            self.simulation.note("moved" if self.moves == 1 else "moved again")

        return take_over if self.is_known else None

    def keep_a_task_waiting(self) -> Callable[[], None] | None:
        """A task waits in vain for a producer that is being initialized."""

        def lose_patience(worker: ModelWorker) -> None:
            self.simulation.say("process", worker.process.number, "waits no longer for a producer")
            self.simulation.note("no patience")
            worker.waits_for.too_late = True

        return self.one_of([one for one in self.workers if one.may_lose_patience], lose_patience)

    def grow_old(self) -> Callable[[], None] | None:
        """The producers that a process has ready are not used for a long time."""

        def grow(worker: ModelWorker) -> None:
            self.simulation.say("process", worker.process.number, "has not taken a producer for long")
            worker.grow_old()

        keeping = [one for one in self.workers if one.process.task is None and one.keeps_some]
        return self.one_of(keeping, grow)

    def marks_late(self) -> bool:
        """Decides whether a commit that is answered now still has to write its markers."""
        simulation = self.simulation
        if simulation.peace or "request late" not in simulation.config.faults or not simulation.dice.pick(2):
            return False
        simulation.note("request late")
        return True

    def is_writing_markers(self, one: Id) -> bool:
        """Decides whether a commit is still incomplete. Without faults, the second query finds it complete."""
        if one.state != "PrepareCommit":
            return False
        if self.simulation.peace:
            one.state = "CompleteCommit"
        return True

    # --- requests -----------------------------------------------------------------------------------------------------

    def initialise(self, name: str) -> int | None:
        """Returns the new epoch; None while markers are being written."""
        if name in self.late:
            self.late.remove(name)
            self.overdue.append(name)
        one = self.ids.get(name)
        if one is None:
            self.ids[name] = Id(name)
            return 0
        if self.is_writing_markers(one):
            return None
        if one.state == "Ongoing":
            self.simulation.oracle.aborted((self.name, name, one.epoch))
            one.epoch += 1
        one.epoch += 1
        one.state = "Empty"
        return one.epoch

    def produce(self, name: str, epoch: int, batch: int, slot: int, parts: int, writer: Writer | None) -> str:
        """Returns ``taken``, ``fenced``, ``carried`` or ``carries``.

        ``carried`` means that the epoch was already used for another transaction, and ``carries`` that it is being used
        for one now.
        """
        one = self.ids.get(name)
        if one is None or one.epoch != epoch or one.state.startswith("Prepare"):
            return "fenced"
        if one.state == "Ongoing":
            if one.writer is not writer:
                return "carries"
            one.parts += parts
            return "taken"
        answer = "taken" if one.state == "Empty" else "carried"
        one.state, one.batch, one.slot, one.parts, one.writer = "Ongoing", batch, slot, parts, writer
        one.damaged = False
        one.begun_ms = self.simulation.time_ms(batch)
        return answer

    def give_up(self, name: str, epoch: int) -> None:
        """librdkafka's own abort: EndTxn v4, exact in its epoch."""
        one = self.ids.get(name)
        if one is not None and one.epoch == epoch and one.state == "Ongoing":
            self.simulation.oracle.aborted((self.name, name, epoch))
            one.state = "CompleteAbort"

    def end(self, asked: KafkaTransaction, commit: bool, raises_epoch: bool) -> BrokerAnswer:
        """EndTxn: v5 raises the epoch, v4 leaves it unchanged. The product commits with v4, and aborts with v5."""
        if raises_epoch and self.version < 2:
            return BrokerAnswer(UNSUPPORTED_VERSION)
        if commit and self.overdue:
            self.overtake(asked.transactional_id)
        one = self.ids.get(asked.transactional_id)
        if one is None:
            return BrokerAnswer(INVALID_PRODUCER_ID_MAPPING)
        if one.epoch != asked.epoch:
            return BrokerAnswer(INVALID_PRODUCER_EPOCH)
        if self.is_writing_markers(one):
            return BrokerAnswer(CONCURRENT_TRANSACTIONS if commit else INVALID_TXN_STATE)
        if commit:
            if one.state == "CompleteCommit":
                return _NONE
            if one.state != "Ongoing":
                return BrokerAnswer(INVALID_TXN_STATE)
            one.state = "PrepareCommit" if self.marks_late() else "CompleteCommit"
            if self.commit_bumps:
                one.epoch += 1
            key = (self.name, one.name, asked.epoch)
            self.simulation.oracle.shown(key, (one.batch, one.slot, self.name, one.parts - one.damaged))
            return _NONE
        if one.state == "Ongoing":
            self.simulation.oracle.aborted((self.name, one.name, one.epoch))
            one.state = "CompleteAbort"
        one.epoch += raises_epoch
        return _NONE

    def fence(self, asked: KafkaTransaction) -> BrokerAnswer:
        """InitProducerId with a producer id, with which version 1 aborts."""
        if self.version >= 2:
            self.simulation.oracle.broken(Violation.BLUNT_ABORT, asked.transactional_id, asked.epoch)
        one = self.ids.get(asked.transactional_id)
        if one is None:
            return BrokerAnswer(INVALID_PRODUCER_ID_MAPPING)
        if self.is_writing_markers(one):
            return BrokerAnswer(CONCURRENT_TRANSACTIONS)
        if one.state == "Ongoing":
            self.simulation.oracle.aborted((self.name, one.name, one.epoch))
            one.epoch += 1
            one.state = "CompleteAbort"
            return BrokerAnswer(CONCURRENT_TRANSACTIONS)
        if one.epoch != asked.epoch:
            return BrokerAnswer(INVALID_PRODUCER_EPOCH)
        one.epoch += 1
        one.state = "Empty"
        return _NONE

    def find(self) -> int:
        """FindCoordinator."""
        self.is_known = True
        return self.broker

    def listed(self, states: Sequence[str]) -> list[str]:
        """ListTransactions."""
        return [one.name for one in self.ids.values() if one.state in states]

    def describe(self, name: str) -> wire.Reply:
        """DescribeTransactions."""
        one = self.ids.get(name)
        if one is None:
            return wire.says(TRANSACTIONAL_ID_NOT_FOUND)
        return wire.Reply(
            error_code=0,
            transactional_id=name,
            producer_id=PRODUCER_ID,
            producer_epoch=one.epoch,
            transaction_state=one.state,
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=one.begun_ms if one.state != "Empty" else -1,
            topics=[_TOPIC] if one.state == "Ongoing" else [],
        )
