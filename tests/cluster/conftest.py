from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.standalone import Standalone
from cluster.submit import open_folder
from sparkonce_lab.rig.kafka import Cluster


@pytest.fixture(scope="module")
def kafka() -> Iterator[Cluster]:
    with Cluster(overrides={"transaction.abort.timed.out.transaction.cleanup.interval.ms": 500}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all machines share."""
    with open_folder() as folder:
        yield folder
