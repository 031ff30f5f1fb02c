from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from conformance.system_suite import SystemSuite, text_rows
from other_broker import OtherBroker
from shared_servers import KILLS_BROKER, broker_to_kill
from sparkonce.testing.hooks import SinkHooks
from sparkonce_lab.rig.kafka import Cluster
from sparkonce_lab.systems.kafka import KafkaSystem

pytestmark = pytest.mark.kafka


class KafkaSuite(SystemSuite):
    visible_within_s = 30.0
    finds_missing = True
    cluster: Any

    def new_system(self) -> KafkaSystem:
        return KafkaSystem(cluster=self.cluster, partitions=1)

    make_rows = staticmethod(text_rows)

    def make_refused(self, number: int) -> pa.RecordBatch:
        return pa.record_batch({"value": [f"{number}".zfill(1_100_000)]})


class SharedBroker(KafkaSuite):
    """A broker that all tests share, so that it must not be killed."""

    restart_server = SinkHooks.restart_server
    broker = "broker"

    @pytest.fixture(autouse=True)
    def _system(self, request, tmp_path) -> None:
        self.cluster = request.getfixturevalue(self.broker)
        self.begin(tmp_path)


class TestKafkaSink(SharedBroker):
    pass


@pytest.mark.slow
class TestOtherBroker(SharedBroker):
    """franz-go's broker, which reports every finished transaction as Empty, committed or aborted."""

    broker = "other"
    leaves_traces = False
    test_a_transaction_that_timed_out_is_lost = None  # it stays unknown
    test_an_abort_after_the_commit_comes_too_late = None  # aborting a transaction that has already ended succeeds
    test_concluding_a_batch_changes_nothing_for_readers = None  # the same
    test_a_handle_that_names_nothing_is_never_committed = None  # the broker compares only the producer id

    def new_system(self) -> KafkaSystem:
        return KafkaSystem(self.cluster.bootstrap, partitions=1)


@pytest.fixture(scope="module")
def other() -> Iterator[OtherBroker]:
    with OtherBroker(brokers=3) as broker:
        yield broker


@pytest.mark.slow
class TestOldestBroker(SharedBroker):
    """The oldest broker that docs/versions.md promises, which aborts in the first protocol of transactions."""

    broker = "oldest"


@pytest.fixture(scope="module")
def oldest() -> Iterator[Cluster]:
    with Cluster(version="3.0.0", overrides={"auto.create.topics.enable": "false"}) as cluster:
        yield cluster


@KILLS_BROKER
def test_what_is_prepared_survives_a_crash_of_the_broker(tmp_path):
    suite = KafkaSuite()
    suite.cluster = broker_to_kill()
    suite.begin(tmp_path)
    suite.test_what_is_prepared_survives_a_restart_of_the_system()
