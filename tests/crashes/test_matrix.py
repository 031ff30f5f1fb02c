"""Every sink, struck at every point, on its real server: no row is missing, doubled, or seen too early.

The first tier runs the hardest cells of each target, and some of the others, drawn (`pytest --draw`). One cell alone,
and the long form, which is every fault at every point::

    pytest tests/crashes -k "folder and kill-at-WRITING"
    pytest tests/crashes/test_matrix.py -m "slow or not slow" -k postgres
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from crashes.cells import EVERY, LOG_FULL, Cell, is_always_run, is_chosen, unmeant
from crashes.started import StartedTargets
from crashes.table import PROPERTY, encode
from crashes.target import Target
from crashes.targets.files import FilesTarget, HdfsTarget, S3Target
from crashes.targets.folder import FolderTarget
from crashes.targets.kafka import KafkaTarget
from crashes.targets.mysql import MYSQL
from crashes.targets.postgres import POSTGRES
from crashes.targets.pravega import PravegaTarget
from crashes.targets.rabbitmq import RabbitTarget, SuperStreamTarget
from crashes.targets.rabbitmq_queue import QueueTarget
from crashes.targets.redis import RedisClusterTarget, RedisTarget
from crashes.targets.toy import ToyTarget
from crashes.targets.write_ahead import WRITE_AHEAD
from sparkonce.rig.disk import cannot_mount

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
    RabbitTarget(),
    SuperStreamTarget(),
    QueueTarget(),
    PravegaTarget(),
]


RUNS_UNTIL_DRAWN = 12
"""On the average a cell is drawn once in so many runs."""


def cases() -> Iterator[object]:
    for target in TARGETS:
        meant = [cell for cell in EVERY if not unmeant(cell, target)]
        drawable = [cell for cell in meant if is_chosen(cell, target) and not is_always_run(cell, target)]
        drawn = pytest.mark.drawn(-(-len(drawable) // RUNS_UNTIL_DRAWN), f"cells of {target.name}")
        for cell in meant:
            marks = [*target.marks, pytest.mark.xdist_group(target.group)]
            if not is_chosen(cell, target):
                marks.append(pytest.mark.slow)
            elif cell in drawable:
                marks.append(drawn)
            yield pytest.param(target, cell, id=f"{target.name}-{cell}", marks=marks)


@pytest.mark.parametrize(("target", "cell"), list(cases()))
def test_exactly_once(
    started: StartedTargets, target: Target, cell: Cell, record_property: Callable[[str, object], None]
) -> None:
    if reason := target.missing():
        pytest.skip(reason)
    if cell.fault == LOG_FULL and cannot_mount():
        pytest.skip(cannot_mount())
    verdict = started.strike(target, cell)
    record_property(PROPERTY, encode(target.name, cell, verdict))
    assert verdict.violations == ""
    assert verdict.missed == ""
