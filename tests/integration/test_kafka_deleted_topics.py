"""A topic is deleted, or deleted and recreated, while a query writes to it. Any resulting loss is reported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from integration.kafka_witness import Witness, eventually
from small_job import SmallJob
from sparkonce.errors import PreflightError, PrepareError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.state import Phase
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.sinks.kafka.writer import TopicLookup
from sparkonce_lab.kafka import list_transactions

pytestmark = pytest.mark.kafka

WARNING = "was deleted and recreated since this query's last run"
FAST = {"topic.metadata.propagation.max.ms": 500}
"""How long librdkafka waits for a missing topic to appear. The default is 30 s."""


class Scene:
    """A query with a topic of its own, which can be deleted."""

    def __init__(self, witness: Witness, checkpoint: Path, guarantee: Guarantee) -> None:
        self.witness = witness
        self.topic = witness.create_topic()
        self.before: Callable[[], None] = lambda: None
        self.empty: set[tuple[int, int]] = set()
        settings = {"bootstrap.servers": witness.bootstrap, **FAST}
        self.job = SmallJob(
            checkpoint, lambda: [KafkaSink(settings, topic=self.topic, guarantee=guarantee)], self._rows
        )

    def _rows(self, batch: int, slot: int) -> pa.RecordBatch:
        """Triggers an action after all other slots are prepared and before the last slot of batch 1 is written."""
        if (batch, slot) == (1, 1):
            self.before()
            self.before = lambda: None
        values = [] if (batch, slot) in self.empty else [f"{batch}.{slot}.{number}" for number in range(3)]
        return pa.record_batch({"value": pa.array(values, pa.string())})

    def delete(self) -> None:
        self.witness.delete_topic(self.topic)

    def create(self) -> None:
        self.witness.create_topic(name=self.topic)

    def delete_and_create(self) -> None:
        self.delete()
        self.create()

    def visible(self) -> list[str]:
        """Reads the visible rows, once the broker has written the markers of all transactions it acknowledged."""
        eventually(lambda: self.transactions("PrepareCommit", "PrepareAbort"), lambda ending: not ending)
        return self.witness.committed(self.topic)

    def open(self) -> list[str]:
        return self.transactions("Ongoing")

    def transactions(self, *states: str) -> list[str]:
        prefix = f"sparkonce-{self.job.short_query}."
        return list(list_transactions(self.witness.bootstrap, states=states, prefix=prefix))


def batch(number: int) -> list[str]:
    return [f"{number}.{slot}.{place}" for slot in range(2) for place in range(3)]


@pytest.fixture
def scene(witness: Witness, tmp_path: Path) -> Scene:
    return Scene(witness, tmp_path, Guarantee.EXACTLY_ONCE)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns our new warnings since the previous call."""

    def taken() -> list[str]:
        ours = [record for record in caplog.records if record.name.startswith("sparkonce")]
        told = [record.getMessage() for record in ours if record.levelno >= logging.WARNING]
        caplog.clear()
        return told

    return taken


@pytest.mark.parametrize("last_slot", [pytest.param("with rows", marks=pytest.mark.slow), "without rows"])
def test_deleted_while_a_batch_is_written(scene: Scene, warnings: Callable[[], list[str]], last_slot: str) -> None:
    """If the last slot has no rows, no writer can notice."""
    scene.job.run(0)
    scene.before = scene.delete
    scene.empty = set() if last_slot == "with rows" else {(1, 1)}
    with pytest.raises(PrepareError, match=scene.topic):
        scene.job.run(1)
    assert scene.open() == []
    with pytest.raises(PreflightError, match=f"topic='{scene.topic}' does not exist"):
        scene.job.run(1)
    scene.create()
    scene.empty = set()
    warnings()
    scene.job.run(1)
    (told,) = warnings()
    assert scene.topic in told
    assert WARNING in told
    assert scene.visible() == batch(1)


@pytest.mark.slow
def test_made_again_while_a_batch_is_written(scene: Scene, warnings: Callable[[], list[str]]) -> None:
    """Both slots are acknowledged, but the first one's rows are gone. Half of the batch must not become visible."""
    scene.job.run(0)
    scene.before = scene.delete_and_create
    with pytest.raises(PrepareError, match=f"'{scene.topic}' was deleted and recreated while this query ran"):
        scene.job.run(1)
    assert scene.open() == []
    assert scene.visible() == []
    warnings()
    scene.job.run(1, 2)
    assert [WARNING in told for told in warnings()] == [True]
    assert scene.visible() == [*batch(1), *batch(2)]
    scene.job.run(3)
    assert warnings() == [], "it is said once"


@pytest.mark.slow
@pytest.mark.parametrize("again", [pytest.param(False, marks=pytest.mark.slow), True], ids=["deleted", "made again"])
def test_after_the_decision_the_next_batch_says_it(
    scene: Scene, warnings: Callable[[], list[str]], again: bool
) -> None:
    """A producer that still knows the deleted topic retries its rows forever, so the writer asks about the topic."""
    strike = scene.delete_and_create if again else scene.delete

    def listen(phase: Phase, number: int) -> None:
        if phase is Phase.FINISHING and number == 1:
            strike()

    words = "recreated while this query ran" if again else scene.topic
    with pytest.raises(PrepareError, match=words) as told:
        scene.job.run(0, 1, 2, listener=listen)
    assert told.value.details["batch"] == 2
    assert scene.open() == []
    if not again:
        scene.create()
    warnings()
    scene.job.run(2)
    assert [WARNING in each for each in warnings()] == [True]
    assert scene.visible() == batch(2), "Kafka has called batch 1 committed, whose rows went with the old topic"


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
def test_between_a_decision_and_the_next_start_that_start_says_it(
    scene: Scene, warnings: Callable[[], list[str]], again: bool
) -> None:
    scene.job.run(0)
    scene.job.kill(1, Phase.FINISHING)
    assert len(scene.open()) == 2
    scene.delete()
    if not again:
        with pytest.raises(PreflightError, match=f"topic='{scene.topic}' does not exist"):
            scene.job.run(1)
        assert len(scene.open()) == 2, "what is decided stays as it is"
    scene.create()
    warnings()
    scene.job.run(1, 2)
    (told,) = warnings()
    assert WARNING in told
    assert "those of the last decided batch may be gone too" in told
    assert scene.open() == []
    assert scene.visible() == batch(2)


def test_brokers_are_asked_which_topics_there_are(scene: Scene, witness: Witness) -> None:
    lookup = TopicLookup({"bootstrap.servers": witness.bootstrap}, is_transactional=True)
    scene.job.run(0)  # creates Kafka's internal topic of transactions
    assert lookup.is_there([scene.topic, "never-made", "not/a/name"]) == {scene.topic: True, "never-made": False}
    scene.delete()
    eventually(lambda: lookup.is_there([scene.topic]), lambda told: told == {scene.topic: False})


def test_weaker_guarantees_say_it_at_the_next_start(
    witness: Witness, tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    scene = Scene(witness, tmp_path, Guarantee.AT_LEAST_ONCE)
    scene.job.run(0)
    scene.delete_and_create()
    warnings()
    scene.job.run(1)
    assert [WARNING in told for told in warnings()] == [True]
    assert scene.visible() == batch(1)


def test_another_topic_is_not_the_same_one_made_again(scene: Scene, warnings: Callable[[], list[str]]) -> None:
    scene.job.run(0)
    scene.topic = scene.witness.create_topic()
    warnings()
    scene.job.run(1)
    assert warnings() == []
    assert scene.visible() == batch(1)
