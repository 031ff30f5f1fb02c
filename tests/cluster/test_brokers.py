"""Three brokers, three replicas of which two must have a row: each is lost at each point of a batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, PartitionMetadata
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from cluster.conftest import BROKER
from cluster.faults import LIMIT_S, Fault, Heal, Scene, await_replicas, kill_broker, restart_broker
from eventually import eventually
from integration.kafka_witness import Witness
from spark.harness import PARTITIONS, Job
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from striking.gate import Arrival
from striking.points import BEGUN, HALFWAY, IN_COMMITTER, IN_DRIVER, PREPARED, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(2 * 3600)]

ROWS_PER_BATCH = 200
BROKERS = range(3)
INSIDE = (BEGUN, WRITTEN, PREPARED, *IN_COMMITTER)
POINTS = (*IN_DRIVER, *INSIDE)
MOVING = (WRITTEN, PREPARED, Phase.FINISHING.name, HALFWAY)


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with Cluster(nodes=len(BROKERS), overrides=BROKER) as cluster:
        yield cluster


def new_job(three: Cluster, folder: Path) -> Job:
    return Job(three.bootstrap, folder, rows=ROWS_PER_BATCH, rows_per_batch=ROWS_PER_BATCH, points=INSIDE)


@pytest.mark.parametrize("number", BROKERS)
@pytest.mark.parametrize(
    ("what", "fault", "points"), [("killed", kill_broker, POINTS), ("moved", restart_broker, MOVING)]
)
def test_a_broker_is_lost_at_each_point(
    three: Cluster,
    tmp_path: Path,
    say: Callable[[str], None],
    number: int,
    what: str,
    fault: Callable[[int], Fault],
    points: tuple[str, ...],
) -> None:
    with new_job(three, tmp_path / "job") as job:
        scene = Scene(job, None, three, random.Random())
        for point in points:
            scene.strike(fault(number), point)
        scene.finish()
        verdict = job.judge()
        say(f"broker {number} {what} at each of {len(points)} points, {job.decided() + 1} batches: {verdict}")
        assert verdict.is_exactly_once, verdict


def lead_by_another(bootstrap: str, topic: str) -> None:
    """Has another replica lead each partition, by a reassignment and an election: all brokers live on."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def partitions() -> dict[int, PartitionMetadata]:
        return dict(admin.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions)

    before = {number: one.leader for number, one in partitions().items()}
    assert -1 not in before.values()
    turned = {
        TopicPartition(topic, number): [*(each for each in one.replicas if each != before[number]), before[number]]
        for number, one in partitions().items()
    }
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as reassigning:
        answers = reassigning.alter_partition_reassignments(turned)
        assert answers == dict.fromkeys(turned), answers
        eventually(lambda: not reassigning.list_partition_reassignments(), "the replicas are reassigned")
        reassigning.elect_leaders(0, {topic: list(before)})

    def have_moved() -> bool:
        return all(one.leader not in (-1, before[number]) for number, one in partitions().items())

    eventually(have_moved, f"{topic} has other leaders", limit_s=LIMIT_S)


def move_coordinators(scene: Scene, _: Arrival) -> Heal:
    """Gives each transaction another coordinator."""
    lead_by_another(scene.kafka.bootstrap, "__transaction_state")
    return lambda: await_replicas(scene.kafka)


def test_coordinators_move_at_each_point(three: Cluster, tmp_path: Path, say: Callable[[str], None]) -> None:
    with new_job(three, tmp_path / "job") as job:
        scene = Scene(job, None, three, random.Random())
        for point in POINTS:
            scene.strike(move_coordinators, point)
        scene.finish()
        verdict = job.judge()
        say(f"coordinators moved at each of {len(POINTS)} points, {job.decided() + 1} batches: {verdict}")
        assert verdict.is_exactly_once, verdict


@pytest.mark.parametrize("point", [BEGUN, PREPARED, Phase.FINISHING.name])
def test_a_partition_without_a_leader_is_waited_for(
    three: Cluster, tmp_path: Path, say: Callable[[str], None], point: str
) -> None:
    """The target has one replica of each partition."""
    job = new_job(three, tmp_path / "job")
    target = job.config.target
    with closing(Witness(three.bootstrap)) as witness:
        witness.create_topic(PARTITIONS, 1, target, min_insync_replicas="1")

        def leader() -> int:
            return int(witness.admin.list_topics(target, timeout=LIMIT_S).topics[target].partitions[0].leader)

        def take_it(scene: Scene, _: Arrival) -> Heal:
            (broker,) = [each for each in three.brokers if each.node_id == leader()]
            broker.kill()
            eventually(lambda: leader() == -1, "the partition has no leader")
            broker.launch()  # a batch is decided, at the latest when it is back
            return lambda: three.wait_ready()

        with job:
            scene = Scene(job, None, three, random.Random())
            scene.strike(take_it, point)
            scene.finish()
            verdict = job.judge()
            say(f"no leader at {point}, {job.decided() + 1} batches: {verdict}")
            assert verdict.is_exactly_once, verdict
