"""An example on a broker of its own: fed bit by bit, killed, started again, and judged without Spark."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark.desk import Desk, Hold, Visit
from spark.example_child import PHASE, Config
from spark.processes import LIMIT_S, TESTS, Run, eventually
from spark.startup import jvm_flags
from spark.watching import Place, Watcher
from sparkonce.embedded import Cluster
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import TransactionalId, short_query
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import LogView
from sparkonce.testing.kafka import Transaction, list_transactions, read_committed
from sparkonce.testing.registry import RegistryServer
from tryout.run import spark_environment
from tryout.sample import Message, Row, Sample
from tryout.trial import Count, Trial

if TYPE_CHECKING:
    from typing_extensions import Self

EXAMPLES = Path(__file__).parents[2] / "examples"
WITH_TRANSACTIONS = (Phase.FINISHING, Phase.SWEEPING_OWN, Phase.RAISING_FLOOR, Phase.TIDYING, Phase.IDLE)
"""Phases of a batch that is decided."""

LAST_PIECES = 5
"""In how many batches, at least, the last run gets what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One way to run an example.

    Attributes:
        name: What tables call it.
        script: The example's file.
        sample: Makes its input.
        options: Of the example.
        chunk: How many records it is fed for each of its batches.
    """

    name: str
    script: str
    sample: Callable[[], Sample]
    options: tuple[str, ...]
    chunk: int


class ExampleRun(Run):
    """One start of an example."""

    def __init__(self, config: Config, query: Query, arguments: Sequence[str], folder: Path, log: Path) -> None:
        command = [sys.executable, "-m", "spark.example_child", config.to_json(), str(EXAMPLES / query.script)]
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        environment = {**spark_environment(folder, java=jvm_flags()), "PYTHONPATH": path}
        self._launch([*command, *arguments], environment, log)


class FirstSeen(Watcher):
    """Notes for each row which batch was the last one decided when the row was first there to be read."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rows: dict[Place, tuple[Row, int]] = {}

    def _take(self, messages: list[Any]) -> None:
        found = [message for message in messages if message.error() is None]
        known = self._decided() if found else -1
        with self._changed:
            for message in found:
                place = (message.partition(), message.offset())
                self.seen[place] = message.key()
                self.rows[place] = (Row(message.key().decode(), message.value().decode()), known)
            self._changed.notify_all()


class ExampleJob:
    """Use as a context manager.

    Args:
        query: What to run.
        folder: A new one.
        keep_batches: How many batches the log keeps.
    """

    def __init__(self, query: Query, folder: Path, *, keep_batches: int = 100) -> None:
        self.query = query
        self.desk = Desk()
        self.runs: list[ExampleRun] = []
        self._folder = folder
        self._temporary = folder / "temporary"
        self._temporary.mkdir(parents=True)
        self._keep_batches = keep_batches
        self.checkpoint = folder / "checkpoint"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        sample = self.query.sample()
        with ExitStack() as stack:
            self.bootstrap = stack.enter_context(Cluster()).bootstrap
            self._registry = stack.enter_context(RegistryServer()).url if sample.registry else None
            self.trial = Trial(sample, bootstrap=self.bootstrap, checkpoint=self.checkpoint, registry=self._registry)
            self.trial.make_topics()
            stack.enter_context(self.desk)
            self.watcher = FirstSeen(self.bootstrap, sample.target, max(sample.sources.values()), self.decided)
            self.watcher.start()
            stack.callback(self.watcher.stop)
            stack.callback(self._kill_all)
            self._left: list[Message] = self.trial.messages()
            self._fed = 0
            self._chunk = self.query.chunk
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _kill_all(self) -> None:
        for run in self.runs:
            run.kill()

    def start(self, points: tuple[str, ...] = ()) -> ExampleRun:
        """Starts the example on its checkpoint."""
        arguments = ["--bootstrap", self.bootstrap, "--checkpoint", str(self.checkpoint), *self.query.options]
        arguments += ["--registry", self._registry] if self._registry else []
        config = Config(desk=self.desk.address, points=points, keep_batches=self._keep_batches)
        log = self._folder / f"run-{len(self.runs)}.log"
        run = ExampleRun(config, self.query, arguments, self._temporary, log)
        self.runs.append(run)
        return run

    def kill_at(self, point: str, look: Callable[[ExampleJob, Visit], None] | None = None) -> None:
        """Starts the example, waits until it is there with rows under way, looks, and kills it."""
        hold = self._hold(point)
        run = self.start((point,) if point not in Phase.__members__ else ())
        self._feed()
        eventually(lambda: bool(hold.caught) or self._go_on(run), f"{self.query.name} is at {point}")
        if look is not None:
            look(self, hold.caught[0])
        run.kill()

    def finish(self) -> Count:
        """Starts it once more, sends what is left in pieces, and waits until all has come out."""
        run = self.start()
        self._chunk = max(1, -(-len(self._left) // LAST_PIECES))
        self._feed()
        eventually(lambda: self._go_on(run) or not self._left, "what is left has been sent")
        count = self.trial.count()

        def is_done() -> bool:
            nonlocal count
            run.check()
            count = self.trial.count()
            if not count.unread and not count.is_done:
                self.trial.close()
            return count.is_done

        try:
            eventually(is_done, "all has come out")
        except AssertionError as error:
            raise AssertionError(f"{self.query.name}: {count}") from error
        finally:
            run.kill()
        return count

    def too_early(self) -> int:
        """Rows that the reader saw before the batch was decided that must have written them.

        The reader must have seen all that stands in the topic, nothing else, and no row that no batch must write.
        """
        self.watcher.catch_up({place: row.key.encode() for place, row in self._standing().items()})
        seen = dict(self.watcher.rows)
        standing = self._standing()  # once more: a transaction may have become visible meanwhile
        assert seen
        assert [row for place, (row, _) in seen.items() if standing.get(place) != row] == []
        # The last run may have been killed when a batch was decided, some of it seen, and Spark did not know of it.
        written_by = self.trial.outcome(self.decided()).rows
        assert [row for row, _ in seen.values() if row not in written_by] == []
        return sum(written_by[row] > decided for row, decided in seen.values())

    def _standing(self) -> dict[Place, Row]:
        """What a read_committed reader finds in the target now."""
        records = read_committed(self.bootstrap, self.trial.sample.target, timeout_s=LIMIT_S)
        return {
            (one.partition, one.offset): Row((one.key or b"").decode(), (one.value or b"").decode()) for one in records
        }

    def left_open(self) -> list[str]:
        """Transactions that are still open, of any run but the newest."""
        tokens = {name: TransactionalId.parse(name).token for name in self.transactions()}  # type: ignore[union-attr]
        newest = max(tokens.values())
        return [name for name in self.transactions("Ongoing") if tokens.get(name, newest) != newest]

    def decided(self) -> int:
        """The last batch that is decided now, or -1."""
        newest = self._log().newest_decision if (self.checkpoint / "sparkonce").is_dir() else None
        return newest.batch if newest is not None else -1

    def handles(self) -> tuple[Handle, ...]:
        """The transactions of the last batch that is decided."""
        newest = self._log().newest_decision
        return tuple(handle for handle in newest.handles if handle.transaction) if newest is not None else ()

    def transactions(self, *states: str) -> dict[str, Transaction]:
        """The example's own on the server."""
        query = short_query(str(json.loads((self.checkpoint / "metadata").read_text())["id"]))
        found = list_transactions(self.bootstrap, states=states)
        return {
            name: one
            for name, one in found.items()
            if (parsed := TransactionalId.parse(name)) is not None and parsed.query == query
        }

    def _log(self) -> LogView:
        return DecisionLog(LocalLogStore(self.checkpoint)).read(LogView())

    def _hold(self, point: str) -> Hold:
        if point not in Phase.__members__:
            return self.desk.hold(point)
        phase, before = Phase[point], self.decided()

        def has_rows(at: Visit) -> bool:
            if phase is Phase.DECIDING:
                return bool(self.transactions("Ongoing"))
            if phase in WITH_TRANSACTIONS:
                return at.told["batch"] > before and bool(self.handles())
            return True

        return self.desk.hold(PHASE, when=has_rows, phase=point)

    def _go_on(self, run: ExampleRun) -> bool:
        """Feeds it once for each batch that it has done."""
        run.check()
        if self._fed < len(self.desk.at(PHASE, phase=Phase.IDLE.name)):
            self._fed += 1
            self._feed()
        return False

    def _feed(self) -> None:
        self.trial.send(self._left[: self._chunk])
        self._left = self._left[self._chunk :]
