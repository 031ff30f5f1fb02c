"""The demo's numbers: the actual output next to the expected one, and how far a killed batch had come."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from rich.console import Console as RichConsole

from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce_lab.demo.console import Console
from sparkonce_lab.demo.result import Count, CrashPoint, Standing, compare
from sparkonce_lab.demo.scenario import Context, WithSparkonce, new_workload
from sparkonce_lab.history import ROWS
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.observed import of_texts

# Each window and customer, with the sum in cents and the number of orders.
RIGHT = {(1000, 1): (30, 2), (1000, 2): (5, 1), (2000, 1): (7, 1)}
EXPECTED = pa.Table.from_pylist(
    [
        {"kind": "sum", "key": customer, "number": window, "amount": cents, "rows": orders}
        for (window, customer), (cents, orders) in RIGHT.items()
    ],
    schema=ROWS,
)


def row(window: int, customer: int, cents: int, orders: int, batch: int = 0) -> bytes:
    return f"sum,{customer},{window},{cents},{orders},{batch}".encode()


SEEN = [row(*cell, *total) for cell, total in RIGHT.items()]


def counted(seen: list[bytes]) -> Count:
    return compare(EXPECTED, of_texts(seen))


def test_every_row_once_is_exactly_once() -> None:
    count = counted(SEEN)
    assert count.exactly_once
    assert (count.orders, count.expected, count.seen, count.amount_expected, count.amount_seen) == (4, 3, 3, 42, 42)

    assert not compare(ROWS.empty_table(), of_texts([])).exactly_once


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        pytest.param(SEEN[1:], {"missing": 1}, id="missing"),
        pytest.param([*SEEN, SEEN[0], SEEN[0]], {"doubled": 2}, id="came three times"),
        pytest.param([*SEEN, row(1000, 1, 30, 2, batch=7)], {"doubled": 1}, id="came again in another batch"),
        pytest.param([row(1000, 1, 10, 1), *SEEN[1:]], {"wrong": 1, "missing": 1}, id="half of its orders"),
        pytest.param([*SEEN, row(3000, 1, 1, 1)], {"wrong": 1}, id="a window without orders"),
        pytest.param([*SEEN, b"{}"], {"wrong": 1}, id="no row"),
        pytest.param([SEEN[0], SEEN[0], SEEN[2]], {"missing": 1, "doubled": 1}, id="the number alone would be right"),
    ],
)
def test_what_is_not_exactly_once_is_named(seen: list[bytes], found: dict[str, int]) -> None:
    count = counted(seen)
    assert not count.exactly_once
    assert {name: getattr(count, name) for name in ("missing", "doubled", "wrong") if getattr(count, name)} == found


def test_every_order_is_in_one_window_of_its_customer() -> None:
    workload = new_workload(rows_per_second=100, seed=1)
    expected = workload.expected(1_000)
    sums = expected.filter(pc.equal(expected["kind"], "sum"))
    assert pc.sum(sums["rows"]).as_py() == 1_000
    windows = {number - workload.started_ms for number in sums["number"].to_pylist()}
    assert windows == set(range(0, 10_000, 1_000))
    assert len(set(sums["key"].to_pylist())) == 100


@pytest.mark.parametrize(
    ("decided", "still_open", "ended", "proved"),
    [
        (False, 4, 0, CrashPoint.PREPARED),
        (True, 4, 0, CrashPoint.DECIDED),
        (True, 2, 2, CrashPoint.HALFWAY),
        (False, 0, 0, None),
        (True, 0, 4, None),
    ],
)
def test_a_standing_proves_one_point_or_none(
    decided: bool, still_open: int, ended: int, proved: CrashPoint | None
) -> None:
    found = Standing(batch=7, decided=decided, ended=ended, open=still_open)
    assert [point for point in CrashPoint if found.proves(point)] == ([proved] if proved else [])


def test_the_queries_of_the_demo_can_be_made(tmp_path: Path) -> None:
    context = Context(
        bootstrap="broker:9092",
        folder=tmp_path,
        jars=(),
        workload=new_workload(1, 100),
        console=Console(RichConsole(quiet=True)),
    )
    config = WithSparkonce(context).config()
    sink = KafkaSystem.build(config.sinks[KafkaSystem.name])
    assert isinstance(sink, KafkaSink)
    assert (sink.topic, sink.prefix) == ("totals-sparkonce", "sparkonce")
