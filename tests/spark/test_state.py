"""Queries that keep state are killed (SIGKILL, with JVM and workers) where output and state may part.

They are plans of our own, each with one of the state stores, and those of the examples. Queries share one Spark. The
first tier has the `dropDuplicates` that `test_kills` kills at every phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from spark import stateful
from spark.example_job import PLANS, plan_example
from spark.harness import Message, Row
from spark.kills import POINTS
from spark.matrix import LARGER, ROWS_PER_BATCH, Example, Outcome, StateJob, carry_out
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from sparkonce.testing.registry import RegistryServer

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]

Say = Callable[[str], None]

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = {PROVIDER: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
OFTEN = {
    # State is snapshotted and cleaned up all the time, so that kills fall into that, too.
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
}
STORES = {
    "hdfs": OFTEN,
    "rocksdb": {**OFTEN, **ROCKSDB},
    "changelog": {
        **OFTEN,
        **ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
}
FILES = {"hdfs": {".delta"}, "rocksdb": {".zip"}, "changelog": {".changelog", ".zip"}}

GIVE_WITHOUT_DATA = ("transform_with_state", "tumbling", "session", "left_outer_join")
"""Those that give rows in batches without data. If there are none, it takes a batch more to close the last windows,
and so batches that do not hold all closing rows."""

FOLLOW_FROM_BATCHES = ("sliding", "distinct_within_watermark")
"""Those that give other rows in other batches: an update for each, or a name again when a batch has forgotten it."""

NO_DATA, DATA = "no-data", "data"

COVER = (
    ("transform_with_state", "changelog", NO_DATA),
    ("tumbling", "hdfs", NO_DATA),
    ("session", "rocksdb", NO_DATA),
    ("sliding", "changelog", DATA),
    ("inner_join", "hdfs", DATA),
    ("left_outer_join", "changelog", DATA),
    ("distinct", "rocksdb", DATA),
    ("distinct_within_watermark", "hdfs", DATA),
)

PARTING = (Phase.FINISHING.name, Phase.DECIDING.name)
"""Where rows and state differ: a decided batch of which nothing is committed, and whose state the disk loses; then a
batch that has its state and is not decided."""

SHORT, LONG, LONGER = 8, 24, 40
"""Batches of the input."""


def example(plan: str, store: str, kind: str, batches: int) -> Example:
    sent, model = stateful.PLANS[plan]
    sources = sent(batches * ROWS_PER_BATCH)

    def expected(job: StateJob) -> Counter[Row]:
        return model([[list(map(event, source)) for source in batch] for batch in job.batches()])

    return Example(
        name=f"{plan}-{store}-{kind}",
        plan=f"spark.stateful:{plan}",
        sent=[[message(each) for each in source] for source in sources],
        closing=[[message(stateful.closing(number))] * 2 * ROWS_PER_BATCH for number in range(len(sources))],
        expected=expected,
        output_mode="update" if plan == "sliding" else "append",
        sql=STORES[store],
        no_data=kind == NO_DATA,
        undisturbed=1 if plan in FOLLOW_FROM_BATCHES or (plan in GIVE_WITHOUT_DATA and kind == DATA) else LARGER,
        state_files=frozenset(FILES[store]),
    )


def message(event: stateful.Event) -> Message:
    return event.name.encode(), str(event.second).encode()


def event(message: Message) -> stateful.Event:
    key, value = message
    return stateful.Event(key.decode(), int(value or b""))


Case = tuple[str, ...]


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_where_output_and_state_may_part(kafka: Cluster, tmp_path: Path) -> None:
    case = ("tumbling", "hdfs", NO_DATA)
    (killed,) = struck({case: PARTING}, SHORT, kafka, tmp_path)
    killed.check(PARTING)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("cases", "batches"), [(COVER, LONG), ([(each,) for each in PLANS], LONGER)], ids=["stores", "examples"]
)
def test_every_plan_at_every_point(
    cases: Iterable[Case], batches: int, kafka: Cluster, tmp_path: Path, say: Say
) -> None:
    for each in struck(dict.fromkeys(cases, POINTS), batches, kafka, tmp_path, say):
        each.check(POINTS)


def struck(
    cases: Mapping[Case, Sequence[str]], batches: int, kafka: Cluster, folder: Path, say: Say = lambda _: None
) -> list[Outcome]:
    """Strikes plans of ours, and those of the examples, whose cases are a name alone, each at its points."""
    with RegistryServer() as registry:
        examples = [
            (example(*case, batches) if len(case) > 1 else plan_example(*case, batches, registry.url), points)
            for case, points in cases.items()
        ]
        return carry_out(kafka.bootstrap, folder, examples, say)
