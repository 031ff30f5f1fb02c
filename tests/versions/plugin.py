"""Starts every broker of a test run in another version of Kafka: ``pytest -p versions.plugin --kafka 3.9.1 …``.

``--transactions 1`` formats it with that level of the feature ``transaction.version``, see KIP-890.
"""

from __future__ import annotations

import pytest

from sparkonce.rig.kafka import Cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kafka", metavar="VERSION", help="start brokers of this version")
    parser.addoption("--transactions", metavar="LEVEL", type=int, help="with this level of transaction.version")


def pytest_configure(config: pytest.Config) -> None:
    defaults = Cluster.__init__.__kwdefaults__
    if (version := config.getoption("--kafka")) is not None:
        defaults["version"] = version
    if (level := config.getoption("--transactions")) is not None:
        defaults["features"] = {"transaction.version": level}
