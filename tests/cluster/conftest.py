from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.standalone import Standalone
from cluster.stores import STORES, Store
from sparkonce.rig.kafka import Cluster

BROKER = {
    "auto.create.topics.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[Cluster]:
    with Cluster(overrides=BROKER) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone"), workers=3) as running:
        yield running


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with STORES["file"](tmp_path_factory.mktemp("store")) as opened:
        yield opened


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with STORES[request.param](tmp_path_factory.mktemp("store")) as opened:
        yield opened
