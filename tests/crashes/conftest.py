from __future__ import annotations

from collections.abc import Iterator

import pytest

from crashes.started import StartedTargets
from crashes.table import late_table, reported, table
from zygote import Zygote


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    zygote = Zygote(tmp_path_factory.mktemp("zygote") / "log")
    yield zygote
    zygote.close()


@pytest.fixture(scope="module")
def started(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedTargets]:
    with StartedTargets(zygote, tmp_path_factory.mktemp("crashes")) as started:
        yield started


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Computed from the reports, which include those of all xdist workers."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    if results := reported(reports):
        terminalreporter.section("sinks killed and cut off")
        terminalreporter.write_line(f"{table(results)}\n\n{late_table(results)}")
