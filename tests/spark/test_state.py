"""Queries that keep state are killed (SIGKILL, with JVM and workers) at every point, and give what they must.

In CI each plan runs once, with one of the state stores, and is killed where output and state may part. The long forms
kill these at every point, and all plans with all stores, which takes half an hour::

    pytest -m slow -s tests/spark/test_state.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from spark import models
from spark.faults import HALFWAY
from spark.harness import Message, Row
from spark.kills import POINTS
from spark.matrix import ROWS_PER_BATCH, Batch, Example, carry_out, check, table
from sparkonce.embedded import Cluster
from sparkonce.protocol.state import Phase

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 24 * ROWS_PER_BATCH

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


def message(event: models.Event) -> Message:
    return event.name.encode(), str(event.second).encode()


def expected(model: Callable[[Sequence[models.Batch]], models.Pairs]) -> Callable[[Sequence[Batch]], Counter[Row]]:
    """A model of events, as one of messages."""

    def of_messages(batches: Sequence[Batch]) -> Counter[Row]:
        return model(
            [
                [[models.Event(key.decode(), int(value or b"")) for key, value in source] for source in batch]
                for batch in batches
            ]
        )

    return of_messages


INPUTS: dict[str, Callable[[int], Sequence[Sequence[models.Event]]]] = {
    "transform_with_state": lambda rows: [models.blocks(rows)],
    "tumbling": lambda rows: [models.groups(rows)],
    "sliding": lambda rows: [models.groups(rows)],
    "session": lambda rows: [models.visits(rows)],
    "inner_join": models.both_sides,
    "left_outer_join": models.both_sides,
    "distinct": lambda rows: [models.repeated(rows)],
    "distinct_within_watermark": lambda rows: [models.recurring(rows)],
}

GIVE_WITHOUT_DATA = ("transform_with_state", "tumbling", "session", "left_outer_join")
"""Those that give rows in batches without data."""

NO_DATA, DATA = True, False


def example(plan: str, store: str, *, no_data: bool = False) -> Example:
    sources = INPUTS[plan](ROWS)
    return Example(
        name=f"{plan}-{store}" + "-no-data" * no_data,
        plan=f"spark.stateful:{plan}",
        sent=[[message(event) for event in source] for source in sources],
        closing=[[message(models.closing(number))] * 2 * ROWS_PER_BATCH for number in range(len(sources))],
        expected=expected(getattr(models, plan)),
        output_mode="update" if plan == "sliding" else "append",
        sql=STORES[store],
        no_data=no_data,
        state_files=frozenset(FILES[store]),
    )


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

EVERY = [
    (plan, store, batches)
    for batches, plans in ((DATA, INPUTS), (NO_DATA, GIVE_WITHOUT_DATA))
    for plan in plans
    for store in STORES
    if (plan, store) != ("transform_with_state", "hdfs")  # Spark refuses it
]
AT_ONCE = 6

PARTING = (Phase.DECIDING.name, Phase.FINISHING.name, Phase.IDLE.name, HALFWAY)
"""Where rows, state and decision stand differently from each other: before the decision, after it, when Spark does not
know of it yet, and in the middle of the commits. The long form has all points."""


@pytest.mark.timeout(1800)
def test_every_plan_and_every_store_where_output_and_state_may_part(
    kafka: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill_and_judge(COVER, kafka, tmp_path, capsys, points=PARTING)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_plan_and_every_store_at_every_point(
    kafka: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill_and_judge(COVER, kafka, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", range(0, len(EVERY), AT_ONCE))
def test_every_plan_with_every_store(
    first: int, kafka: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill_and_judge(EVERY[first : first + AT_ONCE], kafka, tmp_path, capsys)


def kill_and_judge(
    chosen: Sequence[tuple[str, str, bool]],
    kafka: Cluster,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    points: Sequence[str] = POINTS,
) -> None:
    def say(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)  # noqa: T201 - the table is what is to be shown

    examples = [example(plan, store, no_data=no_data) for plan, store, no_data in chosen]
    outcomes = carry_out(kafka.bootstrap, folder, examples, points, say)
    say(table(outcomes, points))
    check(outcomes, points)
