"""Queries that keep state are killed (SIGKILL, with JVM and workers) where output and state may part.

They are plans of our own, each with one of the state stores, and those of the examples. All that are to run are struck
in one Spark. The long forms kill them at every point, and all plans with all stores, which takes an hour::

    pytest -m slow -s tests/spark/test_state.py
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
from striking.points import HALFWAY

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

EVERY = [
    (plan, store, batches)
    for batches, plans in ((DATA, stateful.PLANS), (NO_DATA, GIVE_WITHOUT_DATA))
    for plan in plans
    for store in STORES
    if (plan, store) != ("transform_with_state", "hdfs")  # Spark refuses it
]
AT_ONCE = 6

PARTING = ((Phase.DECIDING.name, HALFWAY), (Phase.FINISHING.name, Phase.IDLE.name))
"""Where rows, state and decision stand differently from each other: before the decision, and in the middle of the
commits; after the decision, and when Spark does not know of it yet. The long form has all points."""

SHORT, LONG, LONGER = 10, 24, 40
"""Batches of the input. Of the short one nine are begun when all four kills are over."""


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

SHORT_FORM = [
    pytest.param(case, points, id=f"{'-'.join(case)}-{number}", marks=marks)
    for cases, marks in (
        (COVER, pytest.mark.drawn(2, "a plan with a state store")),
        ([(each,) for each in PLANS], pytest.mark.drawn(1, "an example's plan")),
    )
    for case in cases
    for number, points in enumerate(PARTING, 1)
]


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, kafka: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[Case, Outcome]:
    """Strikes every case of the short form that is to run, all in one Spark."""
    chosen: dict[Case, tuple[str, ...]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and "outcomes" in item.fixturenames:
            case, points = item.callspec.params["case"], item.callspec.params["points"]
            chosen[case] = (*chosen.get(case, ()), *points)
    return dict(zip(chosen, struck(chosen, SHORT, kafka, tmp_path_factory.mktemp("state")), strict=True))


@pytest.mark.parametrize(("case", "points"), SHORT_FORM)
def test_nothing_is_lost_or_doubled_where_output_and_state_may_part(
    case: Case, points: tuple[str, ...], outcomes: Mapping[Case, Outcome]
) -> None:
    outcomes[case].check(points)


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


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", range(0, len(EVERY), AT_ONCE))
def test_every_plan_with_every_store(first: int, kafka: Cluster, tmp_path: Path, say: Say) -> None:
    cases = dict.fromkeys(EVERY[first : first + AT_ONCE], POINTS)
    for each in struck(cases, LONG, kafka, tmp_path, say):
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
