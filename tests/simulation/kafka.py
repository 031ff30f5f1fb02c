"""Kafka's transaction coordinator, one for all ids, and what the product's `KafkaCommitter` may ask it.

- Initialising an id aborts what is open under it and raises its epoch: by two where something was open.
- A record under an older epoch is fenced. One under the current epoch, after the end of a transaction, opens a second
  one under the same epoch (version 1, and version 2 after EndTxn v4).
- EndTxn (commit) leaves the epoch as it is, up to v4. EndTxn (abort), v5, raises it, also where nothing is open.
- Version 1 has no v5: the product aborts by initialising the id anew, which compares the producer id alone while a
  transaction is open.
- A timeout aborts and raises the epoch.
- The markers that let readers go on are written a little later; until then the coordinator asks for patience.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from simulation.engine import NoAnswerError, RefusedError, Words
from simulation.oracle import Violation
from simulation.spark import BATCHES_APART_MS
from simulation.systems import System, Writer
from sparkonce.errors import PrepareError
from sparkonce.protocol.ownership import LanePool, TransactionalId
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce.sinks.kafka.outcomes import TRANSACTIONAL_ID_NOT_FOUND, Answer, Description, Transaction

if TYPE_CHECKING:
    from simulation.engine import Simulation
    from simulation.oracle import Key
    from simulation.spark import Process
    from sparkonce.protocol.handles import Handle, Scalar
    from sparkonce.sinks.base import Owner

UNKNOWN_SERVER_ERROR = -1
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
CONCURRENT_TRANSACTIONS = 51
_NONE = Answer(0)


class Id:
    """A transactional id, as its coordinator knows it."""

    __slots__ = ("batch", "epoch", "name", "parts", "slot", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.state = "Empty"
        self.batch, self.slot, self.parts = -1, -1, 0


class Kafka(System):
    """A cluster.

    Args:
        simulation: The schedule.
        name: ``kafka-v1`` or ``kafka-v2``.
    """

    commit_bumps = False

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.version = 2 if name == "kafka-v2" else 1
        self.ids: dict[str, Id] = {}
        simulation.events.append(self.write_markers)

    def committer(self) -> KafkaCommitter:
        made = KafkaCommitter.__new__(KafkaCommitter)
        made._client = Client(self)  # type: ignore[assignment]
        made._name = self.name
        made._attempt_timeout_s = 10.0
        return made

    def writer(self, owner: Owner, process: Process, batch: int, slot: int, copy: int) -> Writer:
        return _Writer(self, owner, process, batch, slot)

    def key(self, handle: Handle) -> Key:
        return (self.name, handle["transactional_id"], handle["epoch"])

    def lingering(self) -> list[Key]:
        return [(self.name, one.name, one.epoch) for one in self.ids.values() if one.state == "Ongoing"]

    def expire(self) -> Callable[[], None] | None:
        open_ones = [one for one in self.ids.values() if one.state == "Ongoing"]
        if not open_ones:
            return None

        def time_out() -> None:
            one = open_ones[self.simulation.dice.pick(len(open_ones))]
            self.simulation.say(self.called, "times out", one.name, one.epoch)
            self.simulation.oracle.lost((self.name, one.name, one.epoch))
            one.epoch += 1
            one.state = "CompleteAbort"

        return time_out

    def write_markers(self) -> Callable[[], None] | None:
        """The last marker of a commit is written; None if none is waited for."""
        waiting = [one for one in self.ids.values() if one.state == "PrepareCommit"]
        if not waiting:
            return None

        def write() -> None:
            one = waiting[self.simulation.dice.pick(len(waiting))]
            self.simulation.say(self.called, "has written the markers of", one.name, one.epoch)
            one.state = "CompleteCommit"

        return write

    def marks_late(self) -> bool:
        """Whether a commit that is answered now still has to write its markers."""
        simulation = self.simulation
        if simulation.peace or "request late" not in simulation.config.faults or not simulation.dice.pick(2):
            return False
        simulation.note("request late")
        return True

    def is_writing_markers(self, one: Id) -> bool:
        """Whether a commit is not through yet. In peace, whoever asks a second time finds that it is."""
        if one.state != "PrepareCommit":
            return False
        if self.simulation.peace:
            one.state = "CompleteCommit"
        return True

    # --- requests -----------------------------------------------------------------------------------------------------

    def initialise(self, name: str) -> int | None:
        """The new epoch; None while markers are being written."""
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

    def produce(self, name: str, epoch: int, batch: int, slot: int, parts: int) -> str:
        """``taken``, ``fenced``, or ``reopened`` where the epoch had carried a transaction already."""
        one = self.ids.get(name)
        if one is None or one.epoch != epoch or one.state.startswith("Prepare"):
            return "fenced"
        answer = "taken" if one.state in ("Empty", "Ongoing") else "reopened"
        if one.state == "Ongoing" and (one.batch, one.slot) == (batch, slot):
            one.parts += parts
        else:
            one.state, one.batch, one.slot, one.parts = "Ongoing", batch, slot, parts
        return answer

    def end(self, asked: Transaction, commit: bool) -> Answer:
        """EndTxn: v4 to commit, v5 to abort."""
        one = self.ids.get(asked.transactional_id)
        if one is None:
            return Answer(INVALID_PRODUCER_ID_MAPPING)
        if one.epoch != asked.epoch:
            return Answer(INVALID_PRODUCER_EPOCH)
        if self.is_writing_markers(one):
            return Answer(CONCURRENT_TRANSACTIONS if commit else INVALID_TXN_STATE)
        if commit:
            if one.state == "CompleteCommit":
                return _NONE
            if one.state != "Ongoing":
                return Answer(INVALID_TXN_STATE)
            one.state = "PrepareCommit" if self.marks_late() else "CompleteCommit"
            if self.commit_bumps:
                one.epoch += 1
            key = (self.name, one.name, asked.epoch)
            self.simulation.oracle.shown(key, (one.batch, one.slot, self.name, one.parts))
            return _NONE
        if one.state == "Ongoing":
            self.simulation.oracle.aborted((self.name, one.name, one.epoch))
            one.state = "CompleteAbort"
        one.epoch += 1
        return _NONE

    def fence(self, asked: Transaction) -> Answer:
        """InitProducerId with a producer id, by which version 1 aborts."""
        one = self.ids.get(asked.transactional_id)
        if one is None:
            return Answer(INVALID_PRODUCER_ID_MAPPING)
        if self.is_writing_markers(one):
            return Answer(CONCURRENT_TRANSACTIONS)
        if one.state == "Ongoing":
            self.simulation.oracle.aborted((self.name, one.name, one.epoch))
            one.epoch += 1
            one.state = "CompleteAbort"
            return Answer(CONCURRENT_TRANSACTIONS)
        if one.epoch != asked.epoch:
            return Answer(INVALID_PRODUCER_EPOCH)
        one.epoch += 1
        one.state = "Empty"
        return _NONE

    def describe(self, name: str) -> Description | Answer:
        """DescribeTransactions."""
        one = self.ids.get(name)
        if one is None:
            return Answer(TRANSACTIONAL_ID_NOT_FOUND)
        started_ms = one.batch * BATCHES_APART_MS if one.batch >= 0 and one.state != "Empty" else -1
        return Description(Transaction(name, 1, one.epoch), one.state, 60_000, started_ms)


class Client:
    """`sparkonce.sinks.kafka.client.TransactionClient`, without a wire."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def end_transactions(self, transactions: Sequence[Transaction], *, commit: bool, deadline_s: float) -> list[Any]:
        what = "commits" if commit else "aborts"
        return [
            self._ask((what, one.transactional_id, one.epoch), lambda one=one: self._kafka.end(one, commit))
            for one in transactions
        ]

    def fence(self, transactions: Mapping[Transaction, int], *, deadline_s: float) -> list[Any]:
        return [
            self._ask(("fences", one.transactional_id, one.epoch), lambda one=one: self._kafka.fence(one))
            for one in transactions
        ]

    def describe_transactions(self, transactions: Sequence[Transaction], *, deadline_s: float) -> list[Any]:
        return [
            self._ask(("describes", one.transactional_id), lambda one=one: self._kafka.describe(one.transactional_id))
            for one in transactions
        ]

    def list_transactions(self, states: Sequence[str], *, deadline_s: float) -> Any:
        def listed() -> list[str]:
            return [one.name for one in self._kafka.ids.values() if one.state in states]

        return self._ask(("lists", states[0]), listed)

    def survey(self, states: Sequence[str], wanted: Callable[[str], bool], *, deadline_s: float) -> Any:
        names = self._ask(
            ("surveys",),
            lambda: [one.name for one in self._kafka.ids.values() if one.state in states and wanted(one.name)],
        )
        if isinstance(names, Answer):
            return names
        return [view for name in names if isinstance(view := self._kafka.describe(name), Description)]

    def transaction_version(self, *, deadline_s: float) -> int:
        return self._kafka.version

    def close(self) -> None:
        pass

    def _ask(self, what: Words, apply: Callable[[], Any]) -> Any:
        try:
            return self._kafka.simulation.request((self._kafka.called, *what), apply)
        except NoAnswerError as error:
            return Answer(None, str(error))
        except RefusedError:
            return Answer(UNKNOWN_SERVER_ERROR)


class _Writer(Writer):
    system: Kafka

    def __init__(self, system: Kafka, owner: Owner, process: Process, batch: int, slot: int) -> None:
        super().__init__(system)
        self._kept = process.kept
        self._pool_of = (system.name, owner.token, owner.generation)
        self._owner = owner
        # A process draws this once for each sink and run.
        worker = self._kept.setdefault((self._pool_of, "worker"), len(self._kept) * 4096 + process.number)
        self._worker = f"{worker:012x}"
        self._batch, self._slot = batch, slot
        self._lane = -1
        self._name, self._epoch = "", -1

    def begin(self) -> None:
        ready = self._kept.setdefault((self._pool_of, "ready"), [])
        lane, self._name, self._epoch = ready.pop() if ready else self._initialise()
        self._lane = lane
        if self.system.simulation.config.keep_ready:
            with suppress(PrepareError):
                ready.append(self._initialise())

    def _initialise(self) -> tuple[int, str, int]:
        """A lane, its id, and the new epoch. A lane whose initialisation was not answered is never given back."""
        pool, lane = self._kept.get(self._pool_of, LanePool()).lend(self._batch)
        self._kept[self._pool_of] = pool
        name = str(
            TransactionalId(
                prefix=self.system.prefix,
                query=self._owner.query,
                token=self._owner.token,
                worker=self._worker,
                lane=lane,
            )
        )
        for _ in range(3):
            epoch = self.ask(("initialises", name), lambda: self.system.initialise(name))
            if epoch is not None:
                return lane, name, epoch
            self.system.simulation.let_others_go_on()
        raise PrepareError("the id's last transaction is still being ended")

    def write(self, parts: int) -> None:
        answer = self.ask(
            ("writes", self._name, self._epoch),
            lambda: self.system.produce(self._name, self._epoch, self._batch, self._slot, parts),
        )
        if answer == "fenced":
            raise PrepareError("fenced")
        if answer == "reopened":
            self.system.simulation.oracle.broken(Violation.SHARED_EPOCH, self._name, self._epoch)

    def prepare(self) -> Mapping[str, Scalar]:
        return {"transactional_id": self._name, "producer_id": 1, "epoch": self._epoch}

    def abort(self) -> None:
        if self._lane >= 0:
            with suppress(PrepareError):
                self.ask(("gives up", self._name, self._epoch), self._give_up)
        self.close()

    def _give_up(self) -> None:
        """librdkafka's own abort: EndTxn v4, exact in its epoch."""
        one = self.system.ids.get(self._name)
        if one is not None and one.epoch == self._epoch and one.state == "Ongoing":
            self.system.simulation.oracle.aborted((self.system.name, one.name, one.epoch))
            one.state = "CompleteAbort"

    def close(self) -> None:
        if self._lane >= 0:
            self._kept[self._pool_of] = self._kept[self._pool_of].give_back(self._lane, self._batch)
            self._lane = -1
