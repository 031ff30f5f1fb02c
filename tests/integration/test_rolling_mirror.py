"""A query's topic is mirrored by MirrorMaker 2, and the query moves to the mirror. Both clusters are asked.

MirrorMaker takes what a read_uncommitted reader takes, unless it is told otherwise. It writes what it has read a second
time if it dies, unless it is told otherwise, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eventually import eventually
from integration.kafka_witness import LIMIT_S, Witness, new_name
from mirror_maker import EXACTLY_ONCE, READ_COMMITTED, SAME_NAMES, MirrorMaker
from small_job import SmallJob
from sparkonce.errors import PreflightError, UnknownOutcomeError
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.testing.kafka import read_committed

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

COPIED_WITHIN_S = 180.0
"""MirrorMaker takes as long to start as a broker, and after a kill its group waits for what is gone."""


@pytest.fixture(scope="module")
def old() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


@pytest.fixture(scope="module")
def new() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


def values(*batches: int) -> list[str]:
    return sorted(f"{batch}.{slot}" for batch in batches for slot in range(2))


class Query:
    """A query into a topic of its own, which moves with it."""

    def __init__(self, old: Cluster, new: Cluster, folder: Path) -> None:
        self.old, self.new, self.folder = old, new, folder
        self.cluster = old
        self.topic = new_name()
        self.sink: dict[str, Any] = {}
        with closing(Witness(old.bootstrap)) as witness:
            witness.create_topic(name=self.topic)
        self.job = SmallJob(
            folder / "checkpoint",
            lambda: [KafkaSink({"bootstrap.servers": self.cluster.bootstrap}, topic=self.topic, **self.sink)],
            lambda batch, slot: pa.record_batch({"value": [f"{batch}.{slot}"]}),
            deadline_s=10.0,
        )

    def mirror(self, **settings: str) -> MirrorMaker:
        return MirrorMaker(self.folder / "mirror", self.old, self.new, self.topic, **settings)

    def read(self, cluster: Cluster, topic: str = "") -> list[str]:
        """Reads what a read_committed reader finds; nothing if there is no such topic yet."""
        with closing(Witness(cluster.bootstrap)) as witness:
            there = witness.admin.list_topics(timeout=LIMIT_S).topics
            return witness.committed(topic or self.topic) if (topic or self.topic) in there else []

    def await_copy(self, mirror: MirrorMaker, expected: list[str], topic: str = "") -> None:
        """Waits until a reader of the mirror finds exactly this."""
        found: list[str] = []

        def is_copied() -> bool:
            found[:] = self.read(self.new, topic)
            return found == expected

        try:
            eventually(is_copied, f"the mirror has {expected}", limit_s=COPIED_WITHIN_S)
        except AssertionError as error:
            raise AssertionError(f"{error}, but {found}\n{mirror.log_tail()}") from None


@pytest.fixture
def query(old: Cluster, new: Cluster, tmp_path: Path) -> Query:
    return Query(old, new, tmp_path)


# --- what MirrorMaker makes of transactions --------------------------------------------------------------------------


def test_by_its_defaults_the_mirror_has_rows_early_and_those_that_were_aborted(query: Query) -> None:
    query.job.run(0)
    query.job.kill(1, Phase.DECIDING)
    with query.mirror() as mirror:
        copy = mirror.topic(query.topic)
        query.await_copy(mirror, values(0, 1), copy)
        assert query.read(query.old) == values(0), "of batch 1 nobody has decided"
        query.job.run(1, 2)
        query.await_copy(mirror, values(0, 1, 1, 2), copy)
    assert query.read(query.old) == values(0, 1, 2)


def test_with_a_consumer_that_is_read_committed_the_mirror_has_each_row_once(query: Query) -> None:
    query.job.run(0)
    query.job.kill(1, Phase.DECIDING)
    with query.mirror(**READ_COMMITTED) as mirror:
        copy = mirror.topic(query.topic)
        query.await_copy(mirror, values(0), copy)
        query.job.run(1, 2)
        query.await_copy(mirror, values(0, 1, 2), copy)


def test_a_mirrormaker_that_is_killed_copies_again_what_it_has_copied(query: Query) -> None:
    query.job.run(0, 1)
    with query.mirror(**READ_COMMITTED) as mirror:
        query.await_copy(mirror, values(0, 1), mirror.topic(query.topic))
        mirror.kill()
        mirror.start()
        query.await_copy(mirror, values(0, 0, 1, 1), mirror.topic(query.topic))


def test_with_its_own_exactly_once_a_mirrormaker_that_is_killed_copies_nothing_twice(query: Query) -> None:
    query.job.run(0, 1)
    with query.mirror(**READ_COMMITTED, **EXACTLY_ONCE) as mirror:
        query.await_copy(mirror, values(0, 1), mirror.topic(query.topic))
        mirror.kill()
        query.job.run(2)
        mirror.start()
        query.await_copy(mirror, values(0, 1, 2), mirror.topic(query.topic))


# --- the move --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [SAME_NAMES, {}], ids=["the same name", "its default name"])
def test_a_query_whose_target_moves_goes_on_at_the_mirror(query: Query, names: dict[str, str]) -> None:
    query.job.run(0, 1)
    query.job.kill(2, Phase.FINISHING)
    query.job.run(2)  # the old cluster finishes what is decided: the next start resumes
    before = query.topic
    with query.mirror(**READ_COMMITTED, **EXACTLY_ONCE, **names) as mirror:
        after = before if names else mirror.topic(before)
        query.await_copy(mirror, values(0, 1, 2), after)
        assert mirror.stop(), "in order"
    query.cluster, query.topic = query.new, after
    with pytest.raises(PreflightError, match=f"leads to the cluster '{query.new.cluster_id}'") as refused:
        query.job.run(3)
    assert f"former_cluster_id={query.old.cluster_id!r}" in refused.value.next_step
    assert query.read(query.new) == values(0, 1, 2)
    query.sink = {"former_cluster_id": query.old.cluster_id}
    query.job.run(3)
    query.job.kill(4, Phase.FINISHING)
    query.job.run(4, 5)
    assert query.read(query.new, after) == values(0, 1, 2, 3, 4, 5)
    assert query.read(query.old, before) == values(0, 1, 2)


def test_a_batch_that_was_left_decided_can_be_finished_on_the_old_cluster_only(query: Query) -> None:
    query.job.run(0)
    query.job.kill(1, Phase.FINISHING)
    query.cluster, query.sink = query.new, {"former_cluster_id": query.old.cluster_id}
    with closing(Witness(query.new.bootstrap)) as witness:
        witness.create_topic(name=query.topic)
    with pytest.raises(UnknownOutcomeError, match="INVALID_PRODUCER_ID_MAPPING"):
        query.job.run(1)
    assert query.read(query.new) == []
    query.cluster, query.sink = query.old, {"former_cluster_id": query.new.cluster_id}
    query.job.run(1, 2)
    assert query.read(query.old) == values(0, 1, 2)


# --- what times of rows say ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_the_mirror_keeps_the_times_of_rows(query: Query, kind: str) -> None:
    query.topic = new_name()
    with closing(Witness(query.old.bootstrap)) as witness:
        witness.create_topic(name=query.topic, message_timestamp_type=kind)
    query.job.run(0)
    with query.mirror(**READ_COMMITTED) as mirror:
        query.await_copy(mirror, values(0), mirror.topic(query.topic))
        places = ((query.old, query.topic), (query.new, mirror.topic(query.topic)))
        times = [{row.value: row.timestamp_ms for row in read_committed(at.bootstrap, name)} for at, name in places]
    assert times[0] == times[1]
