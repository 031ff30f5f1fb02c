from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkonce.rig.kafka import Cluster
from sparkonce.sinks.kafka.producer_pool import this_worker

pytest_plugins = ("tiers", "timings")

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups tests for xdist, and puts what takes longest first: no process is left with it at the end.

    A group's tests run in one process, one after the other. It is the file, unless a test names another one.
    """
    from timings import read_kept  # a plugin: pytest rewrites its assertions first

    kept = {HERE / file: max(row.values()) for file, row in read_kept().items()}
    files: dict[str, set[Path]] = defaultdict(set)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(HERE).with_suffix("").as_posix()))
        if item.path.parent.name == "spark" and "spark" not in getattr(item, "fixturenames", ()):
            item.add_marker("killed")
        files[_group(item)].add(item.path)
    seconds = {group: sum(kept.get(path, 0.0) for path in paths) for group, paths in files.items()}
    items.sort(key=lambda item: (-seconds[_group(item)], _group(item)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Names each test's group where xdist looks for it, in its id: xdist 3.8 writes it where pytest 9 reads none."""
    if getattr(session.config.option, "loadgroup", False):
        for item in session.items:
            if not item.nodeid.endswith(f"@{_group(item)}"):
                item._id = type(item._id).parse(f"{item.nodeid}@{_group(item)}")  # type: ignore[attr-defined]


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    assert mark is not None
    return str(mark.args[0] if mark.args else mark.kwargs["name"])


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


@pytest.fixture(scope="module", autouse=True)
def no_level_left_behind() -> Iterator[None]:
    """Fails a module that leaves a level at our logger: the next one in this process would read no warnings."""
    yield
    assert logging.getLogger("sparkonce").level == logging.NOTSET, "Use caplog.set_level: it puts the level back."
