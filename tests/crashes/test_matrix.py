"""Every sink, struck at every point, on its real server: no row is missing, doubled, or seen too early.

One cell alone, and the long form, which is every fault at every point::

    pytest tests/crashes -k "folder and kill-at-WRITING"
    pytest tests/crashes/test_matrix.py -m "slow or not slow" -k postgres
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crashes.cells import EVERY, LOG_FULL, Cell, is_chosen, unmeant
from crashes.stage import Stages
from crashes.table import RESULTS
from crashes.target import Target
from crashes.targets.files import FilesTarget, HdfsTarget, S3Target
from crashes.targets.folder import FolderTarget
from crashes.targets.kafka import KafkaTarget
from crashes.targets.mysql import MYSQL
from crashes.targets.postgres import POSTGRES
from crashes.targets.redis import RedisClusterTarget, RedisTarget
from crashes.targets.toy import ToyTarget
from crashes.targets.write_ahead import WRITE_AHEAD
from sparkonce.testing.disk import cannot_mount

pytestmark = [pytest.mark.crashes, pytest.mark.timeout(300)]

TARGETS: list[Target] = [
    FolderTarget(),
    ToyTarget(),
    KafkaTarget(),
    *POSTGRES,
    *MYSQL,
    FilesTarget(),
    S3Target(),
    HdfsTarget(),
    *WRITE_AHEAD,
    RedisTarget(),
    RedisClusterTarget(),
]


def cases() -> Iterator[object]:
    for target in TARGETS:
        for cell in EVERY:
            if not unmeant(cell, target):
                marks = [*target.marks, *([] if is_chosen(cell, target) else [pytest.mark.slow])]
                yield pytest.param(target, cell, id=f"{target.name}-{cell}", marks=marks)


@pytest.mark.parametrize(("target", "cell"), list(cases()))
def test_exactly_once(stages: Stages, target: Target, cell: Cell) -> None:
    if reason := target.missing():
        pytest.skip(reason)
    if cell.fault == LOG_FULL and cannot_mount():
        pytest.skip(cannot_mount())
    verdict = stages.strike(target, cell)
    RESULTS.append((target.name, cell, verdict))
    assert verdict.violations == ""
    assert verdict.missed == ""
