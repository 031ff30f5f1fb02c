"""The examples as jobs: their plans, for `spark.matrix`, and their programs as their users start them.

What must come out is worked out by ``examples/tryout``, without Spark, from the sources and from what Spark has written
down about its batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventually import LIMIT_S, eventually
from spark.example_plans import AT_ONCE, REGISTRY
from spark.harness import AnyJob, Message, Row
from spark.kills import hold_at
from spark.matrix import ROWS_PER_BATCH, Example, StateJob
from spark.processes import Run
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import TransactionalId
from sparkonce.protocol.state import Phase
from sparkonce.testing.kafka import read_committed
from striking.gate import Arrival
from tryout import EnrichmentSample, EtlSample, SumSample
from tryout import run as tryout
from tryout.checkpoint import read_batches
from tryout.etl import STEP_MS
from tryout.sample import Sample
from tryout.trial import Count, Trial

if TYPE_CHECKING:
    from typing_extensions import Self

EXAMPLES = Path(__file__).parents[2] / "examples"

# --- their plans ------------------------------------------------------------------------------------------------------

STATE = "spark.sql.streaming.stateStore"
ROCKSDB = {
    f"{STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
}
BY_PROCESSING = {"clock": "processing", "window": AT_ONCE["window"]}

PLANS: Mapping[str, Callable[[int], Sample]] = {
    # Else the last of so many rows would be of the future.
    "etl_by_record": lambda rows: EtlSample(count=rows, began_ms=EtlSample().began_ms - rows * STEP_MS),
    "etl_by_processing": lambda rows: EtlSample(count=rows, **BY_PROCESSING),
    "sum_by_event": lambda rows: SumSample(count=rows),
    "sum_by_processing": lambda rows: SumSample(count=rows, **BY_PROCESSING),
    "join": lambda rows: EnrichmentSample(count=rows * 5 // 6),
}
"""The plans of `spark.example_plans`, and what so many rows for each are."""


def plan_example(plan: str, batches: int, registry: str) -> Example:
    """One of the plans, fed with so many batches."""
    sample = PLANS[plan](batches * ROWS_PER_BATCH)
    sent: dict[str, list[Message]] = {source: [] for source in sample.sources}
    for message in sample.messages(registry):
        sent[message.topic].append((str(message.timestamp_ms).encode(), message.value))
    closing = [(str(one.timestamp_ms).encode(), one.value) for one in sample.closing(registry)]

    def expected(job: StateJob) -> Counter[Row]:
        topics = dict(zip(sample.sources, job.config.sources, strict=True))
        batches = [
            replace(batch, ends={name: batch.ends[topic] for name, topic in topics.items()})
            for batch in read_batches(job.checkpoint)
        ]
        sources = {
            name: [
                record._replace(timestamp_ms=int(record.key or b"0"))
                for record in read_committed(job.bootstrap, topic, timeout_s=LIMIT_S)
            ]
            for name, topic in topics.items()
        }
        outcome = sample.outcome(sources, batches)
        assert outcome.unread == 0
        return Counter((row.key, row.value) for row in outcome.rows)

    return Example(
        name=plan,
        plan=f"spark.example_plans:{plan}",
        sent=list(sent.values()),
        closing=[closing * 2 * ROWS_PER_BATCH for _ in sent],
        expected=expected,
        sql={"spark.sql.session.timeZone": "UTC", REGISTRY: registry, **(ROCKSDB if plan == "join" else {})},
        undisturbed=0,
    )


# --- their programs ---------------------------------------------------------------------------------------------------

WITH_TRANSACTIONS = (Phase.FINISHING, Phase.SWEEPING_OWN, Phase.RAISING_FLOOR, Phase.TIDYING, Phase.IDLE)
"""Phases of a batch that is decided."""

LAST_BATCHES = 5
"""How many batches, at least, the last run makes of what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One way to run an example.

    Attributes:
        name: What it is called.
        script: The example's file.
        sample: Makes its input.
        options: Of the example.
        chunk: How many records it reads in a batch.
    """

    name: str
    script: str
    sample: Callable[[], Sample]
    options: tuple[str, ...]
    chunk: int


class ProgramJob(AnyJob):
    """An example with its sample on the shared broker, in topics that are gone when it is over.

    Args:
        bootstrap: The broker.
        folder: A new one.
        program: What to run.
        registry: The schema registry's URL.
        config: More of `spark.pipeline.Config`.
    """

    def __init__(self, bootstrap: str, folder: Path, program: Program, registry: str, **config: Any) -> None:
        sample = program.sample()
        super().__init__(bootstrap, folder, target=sample.target, **config)
        self.config = replace(self.config, sources=tuple(sample.sources))
        self._program, self._registry = program, registry if sample.registry else None
        self.trial = Trial(sample, bootstrap=bootstrap, checkpoint=self.checkpoint, registry=self._registry)
        self._messages = self.trial.messages()

    def __enter__(self) -> Self:
        self.trial.make_topics()
        super().__enter__()
        self.trial.send(self._messages)
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        delete_topics(self.bootstrap, [*self.config.sources, self.config.target])

    def launch(self, chunk: int, point: str = "") -> Run:
        """Starts the example on its checkpoint."""
        program = [str(EXAMPLES / self._program.script), *self._program.options, "--bootstrap", self.bootstrap]
        program += ["--checkpoint", self.config.checkpoint, "--max-offsets", str(chunk)]
        program += ["--registry", self._registry] if self._registry else []
        points = (point,) if point not in Phase.__members__ else ()
        config = replace(self.config, points=points, program=tuple(program))
        # Each core more is a worker, which takes time to start.
        env = tryout.spark_environment(Path(config.temporary), cores=1, java=config.jvm_flags)
        self.runs.append(Run([config], self.folder / f"run-{len(self.runs)}.log", env))
        return self.runs[-1]

    def kill_at(self, point: str, look: Callable[[ProgramJob, Arrival], None] = lambda *_: None) -> None:
        """Starts the example, waits until it is there with rows under way, looks, and kills it."""
        before = self.decided()

        def has_rows(batch: int) -> bool:
            if point == Phase.DECIDING.name:
                return bool(self.transactions("Ongoing"))
            return Phase[point] not in WITH_TRANSACTIONS or (batch > before and bool(self.last_rows()[1]))

        hold = hold_at(point, self, has_rows if point in Phase.__members__ else None)
        run = self.launch(self._program.chunk, point)
        look(self, hold.wait(run.check))
        run.kill()

    def finish(self) -> Count:
        """Starts it once more, and waits until all has come out."""
        run = self.launch(max(1, len(self._messages) // LAST_BATCHES))
        count = tryout._wait(self.trial, run._process)
        run.check()
        run.kill()
        return count

    def left_open(self) -> list[str]:
        """Asks for the transactions that are still open, of any run but the newest."""
        tokens = {name: TransactionalId.parse(name).token for name in self.transactions()}  # type: ignore[union-attr]
        newest = max(tokens.values())
        return [name for name in self.transactions("Ongoing") if tokens.get(name, newest) != newest]

    def last_rows(self) -> tuple[int, tuple[Handle, ...]]:
        """Reads the transactions of the last batch that is decided and has any."""
        log = self.log()
        for batch in range(self.decided(), -1, -1):
            decision = log.decision(batch)
            handles = tuple(handle for handle in decision.handles if handle.transaction) if decision else ()
            if handles:
                return batch, handles
        return -1, ()


def delete_topics(bootstrap: str, topics: list[str]) -> None:
    """Deletes them, and waits until the broker knows them no more."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.delete_topics(topics).values():
        done.result(LIMIT_S)
    eventually(lambda: not admin.list_topics(timeout=LIMIT_S).topics.keys() & set(topics), f"{topics} are gone")
