"""Kafka to Pravega to Kafka, in six queries, three pairs in one process, that are killed five times each.

::

    pytest -m slow -s tests/spark/test_pravega_unit.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from eventually import eventually
from jvm import bare_jvm, jars_beside_spark
from pravega_witness import PravegaWitness
from shared_servers import pravega_server
from spark.harness import new_name, start_together
from spark.kills import Cell, Sight, from_batch, strike
from spark.pipeline import KAFKA
from spark.pravega_job import IntoPravega, OutOfPravega, PravegaEvents
from spark.processes import Run
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.kafka.jars import spark_kafka_jars
from sparkonce.sources.packages import PRAVEGA_CLIENT
from striking.points import BEFORE_CONCLUDE, BEGIN, HALFWAY, PREPARED, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

WITHIN = (BEGIN, WRITTEN, PREPARED, HALFWAY, BEFORE_CONCLUDE)
CELLS: Sequence[Cell] = [
    (Phase.WRITING.name, {}),
    (BEGIN, {}),
    (WRITTEN, {}),
    (PREPARED, {}),
    (Phase.VALIDATING.name, {}),
    (Phase.DECIDING.name, {}),
    (Phase.FINISHING.name, {}),
    (HALFWAY, {}),
    (BEFORE_CONCLUDE, {}),
    (Phase.IDLE.name, {}),
]
PAIRS, ROUNDS = 3, 5
ROWS_PER_BATCH, BYTES_PER_BATCH = 400, 4_000
TRIGGER = {"processingTime": "0 seconds"}

Cells = Sequence[Sequence[tuple[Cell, Cell]]]
"""For each round and each pair of queries the points at which they are killed, all in one process."""


def cells(rounds: int, pairs: int) -> Cells:
    """Deals the points: the two queries of a pair are at different ones."""
    dealt = [[pairs * number + pair for pair in range(pairs)] for number in range(rounds)]
    return [[(CELLS[one % len(CELLS)], CELLS[(one + 5) % len(CELLS)]) for one in row] for row in dealt]


def test_killed_and_killed(kafka: Cluster, tmp_path: Path, say: Callable[[str], None]) -> None:
    rounds, pairs = ROUNDS, PAIRS
    server, jars = pravega_server(), jars_beside_spark(PRAVEGA_CLIENT)
    more = {
        "points": WITHIN,
        "trigger": TRIGGER,
        "slots": 2,
        "jars": tuple(map(str, [*spark_kafka_jars(), *jars])),
    }
    rows = ROWS_PER_BATCH * (rounds + 3)
    with ExitStack() as stack:
        witness = PravegaWitness(stack.enter_context(bare_jvm(jars)), server.url)
        streams = [PravegaEvents(witness, new_name("through"), tmp_path / f"rows-{pair}") for pair in range(pairs)]
        intos = [
            stack.enter_context(
                IntoPravega(
                    *(stream, kafka.bootstrap, tmp_path / f"into-{number}"),
                    rows=rows,
                    rows_per_batch=ROWS_PER_BATCH,
                    **more,
                )
            )
            for number, stream in enumerate(streams)
        ]
        outs = [
            stack.enter_context(
                OutOfPravega(*(stream, kafka.bootstrap, tmp_path / f"out-{number}"), most=BYTES_PER_BATCH, **more)
            )
            for number, stream in enumerate(streams)
        ]
        sights: list[Sight] = []
        for number, dealt in enumerate(cells(rounds, pairs)):
            struck = dict(zip((*intos, *outs), (*(one for one, _ in dealt), *(one for _, one in dealt)), strict=True))
            # At first the second query needs something to read.
            due = {job: from_batch(max(job.decided() + 1, 2 * (job in intos))) for job in struck}
            for job, sight in strike(struck, tmp_path / f"{number}.log", due).items():
                check_sight(sight)
                sights.append(sight)
                say(f"{type(job).__name__} killed at {sight.point}, batch {sight.batch}, decided {sight.decided}")
        assert len(sights) == 2 * rounds * pairs
        last = start_together([*intos, *outs], tmp_path / "last.log")
        for out in outs:
            eventually(lambda out=out: is_through(out, rows, last), "all is through", limit_s=600)
        for job in (*intos, *outs):
            eventually(lambda job=job: not any(job.open().values()), "all is finished")
        last.kill()
        for into, out, stream in zip(intos, outs, streams, strict=True):
            check(into, out, stream, say)


def is_through(job: OutOfPravega, rows: int, run: Run) -> bool:
    """Tells whether a reader finds as many rows as there are, while the query runs."""
    run.check()
    return job.visible()[KAFKA].total() >= rows


def check_sight(sight: Sight) -> None:
    """Sees that no reader of either system finds a row of a batch that is not decided, or one row twice."""
    for found in (sight.visible, sight.after):
        for rows in found.values():
            assert [batch for _, batch in rows if batch > sight.decided] == []


def check(into: IntoPravega, out: OutOfPravega, stream: PravegaEvents, say: Callable[[str], None]) -> None:
    """Sees that both have each row once, in the order of its key, and in the batch that has read it."""
    events = stream.visible()
    assert Counter(row for row, _ in events.elements()) == Counter(into.ids)
    assert by_batch(events) == decided_rows(into)
    verdict = out.count(Counter((row, "") for row in into.ids))
    batches = out.by_batch()
    say(f"{verdict}; {len(by_batch(events))} batches into Pravega, {len(batches)} out of it")
    assert verdict.is_exactly_once, verdict
    assert batches == decided_rows(out) == out.planned()
    assert all(ids == sorted(ids) for ids in out.order_of_keys().values())
    assert set(out.visible()) == {KAFKA}


def by_batch(rows: Counter[tuple[str, int]]) -> dict[int, int]:
    found: Counter[int] = Counter()
    for (_, batch), count in rows.items():
        found[batch] += count
    return dict(found)


def decided_rows(job: IntoPravega | OutOfPravega) -> dict[int, int]:
    """The rows of each batch, as the decision log has them."""
    found = {one.batch: sum(handle.rows for handle in one.handles) for one in job.log().decisions}
    return {batch: rows for batch, rows in found.items() if rows}
