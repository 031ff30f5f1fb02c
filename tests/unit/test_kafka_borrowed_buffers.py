"""Memory that librdkafka reads rows from: kept until they have arrived, and no longer."""

from __future__ import annotations

import random
from collections import deque

import pyarrow as pa
import pytest

from sparkonce.sinks.kafka.loans import Loans

HERE, THERE = ("topic", 0), ("topic", 1)
SIZE = 1_000


def memory(size: int = SIZE) -> pa.Buffer:
    return pa.allocate_buffer(size)


def test_a_report_gives_back_the_oldest_memory_of_its_partition() -> None:
    loans = Loans(10 * SIZE)
    first, _, other = (loans.lend(place, memory(), rows) for place, rows in ((HERE, 10), (HERE, 5), (THERE, 7)))
    loans.give_back(first, 4)
    assert loans.kept_bytes == 3 * SIZE
    loans.give_back(first + 4, 8)
    assert loans.kept_bytes == 2 * SIZE, "the first is given back, the second is read on"
    loans.give_back(other, 7)
    assert loans.kept_bytes == SIZE
    loans.give_back(first + 12, 3)
    assert (loans.kept_bytes, loans.in_order) == (0, True)

    loans = Loans(10 * SIZE)
    number = loans.lend(HERE, memory(), 3)
    loans.lend(THERE, memory(), 3)
    loans.give_back(number, 4)
    assert not loans.in_order
    assert loans.kept_bytes == SIZE

    loans, shared = Loans(10 * SIZE), memory()
    here, there = loans.lend(HERE, shared, 2), loans.lend(THERE, shared, 2)
    assert loans.kept_bytes == SIZE
    loans.give_back(here, 2)
    assert loans.kept_bytes == SIZE
    loans.give_back(there, 2)
    assert loans.kept_bytes == 0


@pytest.mark.parametrize("reported", [1, 30, 100, 0, 999], ids=["told before", "later", "next loan", "copied", "never"])
def test_a_report_that_does_not_begin_with_the_oldest_row_keeps_all_memory(reported: int) -> None:
    loans = Loans(10 * SIZE)
    assert loans.lend(HERE, memory(), 100) == 1
    loans.lend(HERE, memory(), 100)
    loans.give_back(1, 10)
    loans.give_back(reported, 100)
    assert not loans.in_order
    loans.give_back(11, 190)
    assert loans.kept_bytes == 2 * SIZE


def test_once_enough_is_kept_rows_are_to_be_copied_and_their_order_goes_on() -> None:
    columns = [pa.array(["x" * SIZE]) for _ in range(3)]
    loans = Loans(2 * SIZE + 100)
    numbers = []
    for column in columns:
        room = loans.room_for(column)
        assert (room is None) == (column is columns[2])
        numbers.append(loans.lend(HERE, room, 1))
    assert loans.room_for(columns[1]) is not None, "it is kept already"
    for number in numbers:
        loans.give_back(number, 1)
    assert (loans.kept_bytes, loans.in_order) == (0, True)
    assert Loans(10).room_for(columns[0]) is not None, "one piece may be larger than all are to be together"


def test_of_a_batch_from_spark_the_memory_of_all_columns_is_counted() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"key": pa.string(), "value": pa.string()})) as stream:
        stream.write_batch(pa.record_batch({"key": ["k" * 5 * SIZE], "value": ["v"]}))
    (rows,) = pa.ipc.open_stream(pa.py_buffer(sink.getvalue().to_pybytes()))
    room = Loans(1).room_for(rows.column("value"))
    assert room is not None
    assert room.size > 5 * SIZE


def test_an_end_to_the_order_holds_until_all_begins_anew() -> None:
    loans = Loans(10 * SIZE)
    loans.lend(HERE, memory(), 1)
    loans.keep()
    assert loans.kept_bytes == SIZE
    loans.renew()
    assert (loans.kept_bytes, loans.in_order) == (0, True)
    loans.give_back(loans.lend(HERE, memory(), 1), 1)
    assert (loans.kept_bytes, loans.in_order) == (0, True)

    loans = Loans(SIZE, in_order=False)
    assert not loans.in_order
    loans.renew()
    assert not loans.in_order


@pytest.mark.parametrize("seed", range(20))
def test_of_any_schedule_what_is_kept_is_what_has_not_arrived(seed: int) -> None:
    """Until two reports change places: from then on nothing is given back."""
    chance, loans = random.Random(seed), Loans(10**9)
    # Of each partition the rows that have not arrived, each with its memory.
    waiting: dict[tuple[str, int], deque[tuple[int, pa.Buffer]]] = {HERE: deque(), THERE: deque()}
    for step in range(600):
        place, rows = chance.choice([HERE, THERE]), chance.randrange(1, 9)
        line = waiting[place]
        if chance.random() < 0.4:
            lent = memory()
            first = loans.lend(place, lent, rows)
            line.extend((first + number, lent) for number in range(rows))
        elif step > 400 and len(line) > rows:
            skipped = chance.randrange(1, len(line))
            before = loans.kept_bytes
            loans.give_back(line[skipped][0], 1)
            assert (loans.kept_bytes, loans.in_order) == (before, False)
            return
        elif line:
            rows = min(rows, len(line))
            loans.give_back(line[0][0], rows)
            for _ in range(rows):
                line.popleft()
        assert loans.kept_bytes == SIZE * len({lent.address for each in waiting.values() for _, lent in each})
        assert loans.in_order
    pytest.fail("no two reports have changed places")
