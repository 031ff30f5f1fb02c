from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkonce.embedded import Cluster
from sparkonce.sinks.kafka.producers import this_worker

LONGEST = (
    "spark/test_state.py",
    "spark/test_kills.py",
    "verifying",
    "spark",
    "simulation",
    "crashes",
    "integration",
    "model",
)
"""Files, and folders of files, that take minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first: of several processes that run tests none is left with it at the end."""
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(here).as_posix()
        return next((rank for rank, one in enumerate(LONGEST) if path.startswith(one)), len(LONGEST))

    items.sort(key=place)


@pytest.fixture(scope="session")
def broker() -> Iterator[Cluster]:
    """A Kafka cluster of one node, the same for all tests: use topics and ids of your own."""
    with Cluster(overrides={"auto.create.topics.enable": "false"}) as cluster:
        yield cluster


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints at once, whether the test passes or not: whoever waits for a long form wants to see how far it is."""

    def told(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)  # noqa: T201 - that is what it is for

    return told


@pytest.fixture(scope="module", autouse=True)
def no_producer_left_behind() -> Iterator[None]:
    """What writers in this very process keep ready ends with the module, not when it has been idle for a while."""
    yield
    this_worker().stop()
