from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from other_servers import use
from sparkonce.sinks.kafka.producer_pool import this_worker
from sparkonce_lab.rig.kafka import Cluster

if TYPE_CHECKING:
    from integration.kafka_witness import Witness
    from sparkonce_lab.systems.mysql import MySQLSystem
    from sparkonce_lab.systems.postgres import PostgresSystem

HERE = Path(__file__).parent

DEAREST = ("spark", "crashes", "verifying", "integration", "conformance", "model", "simulation")
"""Folders in the order in which they are started, so that no process is left with a long group at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="K/N", help="run only the K-th of N parts of the tests, for example 2/8")
    parser.addoption("--kafka", metavar="VERSION", help="start brokers of this version of Kafka")
    parser.addoption("--transactions", type=int, metavar="LEVEL", help="their level of transaction.version (KIP-890)")
    parser.addoption("--server", action="append", default=[], metavar="NAME=VERSION", help="see other_servers.py")
    parser.addoption("--seed", type=int, default=0, help="seed of random tests; 0, the default, is CI's fixed seed")


def pytest_configure(config: pytest.Config) -> None:
    defaults = Cluster.__init__.__kwdefaults__
    if version := config.getoption("--kafka"):
        defaults["version"] = version
    if level := config.getoption("--transactions"):
        defaults["features"] = {"transaction.version": level}
    for server in config.getoption("--server") if not hasattr(config, "workerinput") else ():  # workers have our PATH
        use(server)
    _let_hypothesis_draw_the_same(config)


def _let_hypothesis_draw_the_same(config: pytest.Config) -> None:
    """The same examples each time, or those of ``--seed``, and no time limit for one: CI's machines are busy."""
    from hypothesis import settings

    seed = config.getoption("--seed")
    settings.register_profile("fixed", deadline=None, derandomize=not seed)
    settings.load_profile("fixed")
    if seed and not config.getoption("--hypothesis-seed", None):
        config.option.hypothesis_seed = str(seed)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Groups tests for xdist. The tests of a group run in one process, in order. By default, each file is a group."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(HERE).with_suffix("").as_posix()))
        if item.path.parent.name == "spark" and "spark" not in getattr(item, "fixturenames", ()):
            item.add_marker("killed")
    if shard := config.getoption("--shard"):
        part, parts = map(int, shard.split("/"))
        mine = [item for item in items if zlib.crc32(_group(item).encode()) % parts == part - 1]
        config.hook.pytest_deselected(items=[item for item in items if item not in mine])
        items[:] = mine
    rank = {folder: number for number, folder in enumerate(DEAREST)}
    items.sort(key=lambda item: (rank.get(item.path.relative_to(HERE).parts[0], len(rank)), _group(item)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Appends each test's group to its id, where xdist looks for it. xdist 3.8 puts it where pytest 9 ignores it."""
    if getattr(session.config.option, "loadgroup", False):
        for item in session.items:
            if not item.nodeid.endswith(f"@{_group(item)}"):
                item._id = type(item._id).parse(f"{item.nodeid}@{_group(item)}")


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0] if mark.args else mark.kwargs["name"])


@pytest.fixture(scope="session")
def broker() -> Iterator[Cluster]:
    """A Kafka cluster of one node that all tests share: use separate topics and ids."""
    with Cluster(overrides={"auto.create.topics.enable": "false"}) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def witness(broker) -> Witness:
    """Another client of the cluster of all tests."""
    from integration.kafka_witness import Witness

    return Witness(broker.bootstrap)


@pytest.fixture
def postgres() -> Iterator[PostgresSystem]:
    """An empty schema ``public``, on the server that all tests of the process share."""
    from shared_servers import new_postgres
    from sparkonce.sinks.sql.postgres.connection import close_all

    system = new_postgres()
    yield system
    system.stop()
    close_all()


@pytest.fixture
def mariadb() -> Iterator[MySQLSystem]:
    """An empty database for one test, on the server that all tests of the process share."""
    from shared_servers import new_mariadb

    system = new_mariadb()
    yield system
    system.stop()


@pytest.fixture
def say(capsys) -> Callable[[str], None]:
    """Prints immediately, whether the test passes or fails, so that the progress of a long test can be followed."""

    def told(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)  # noqa: T201 - printing is its purpose

    return told


@pytest.fixture(scope="module", autouse=True)
def no_producer_left_behind() -> Iterator[None]:
    """Closes the idle producers that writers in this process keep, at the end of each module."""
    yield
    this_worker().stop()


@pytest.fixture(scope="module", autouse=True)
def no_level_left_behind() -> Iterator[None]:
    """Fails if a module leaves a level set on our logger, which would hide warnings from the next module."""
    yield
    assert logging.getLogger("sparkonce").level == logging.NOTSET, "Use caplog.set_level: it puts the level back."
