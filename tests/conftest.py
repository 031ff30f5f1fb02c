from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparkonce.embedded import Cluster


@pytest.fixture(scope="session")
def broker() -> Iterator[Cluster]:
    """A Kafka cluster of one node, the same for all tests: use topics and ids of your own."""
    with Cluster(overrides={"auto.create.topics.enable": "false"}) as cluster:
        yield cluster
