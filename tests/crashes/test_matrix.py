"""Every sink, struck at every point, on its real server: no row is missing, duplicated, or visible too early.

The first tier has the cells that nothing cheaper can replace (`crashes.cells.CHOICES`); the others are slow. One cell,
and every fault at every point::

    pytest tests/crashes -k "folder and kill-at-WRITING"
    pytest tests/crashes/test_matrix.py -m "slow or not slow" -k postgres
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crashes.cells import EVERY, LOG_FULL, is_chosen, unmeant
from crashes.targets import TARGETS
from sparkonce_lab.rig.disk import cannot_mount

pytestmark = [pytest.mark.crashes, pytest.mark.timeout(300)]


def cases() -> Iterator[object]:
    for target in TARGETS:
        for cell in EVERY:
            if unmeant(cell, target):
                continue
            marks = [*target.marks, pytest.mark.xdist_group(f"crashes-{target.server}")]
            if not is_chosen(cell, target):
                marks.append(pytest.mark.slow)
            yield pytest.param(target, cell, id=f"{target.name}-{cell}", marks=marks)


@pytest.mark.parametrize(("target", "cell"), list(cases()))
def test_exactly_once(started, target, cell):
    if reason := target.missing():
        pytest.skip(reason)
    if cell.fault == LOG_FULL and cannot_mount():
        pytest.skip(cannot_mount())
    verdict = started.strike(target, cell)
    assert verdict.violations == ""
    assert verdict.missed == ""
