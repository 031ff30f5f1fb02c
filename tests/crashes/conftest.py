from __future__ import annotations

from collections.abc import Iterator

import pytest

from crashes.stage import Stages
from crashes.table import RESULTS, late_table, table


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    with Stages(tmp_path_factory.mktemp("crashes")) as stages:
        yield stages


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if RESULTS:
        terminalreporter.section("sinks killed and cut off")
        terminalreporter.write_line(f"{table(RESULTS)}\n\n{late_table(RESULTS)}")
