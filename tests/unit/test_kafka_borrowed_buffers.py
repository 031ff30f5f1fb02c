"""Memory that librdkafka reads rows from is kept exactly until the rows are delivered."""

from __future__ import annotations

import random
from collections import deque

import pyarrow as pa
import pytest

from sparkonce.sinks.kafka.batch_producer import BorrowedBuffers

HERE, THERE = ("topic", 0), ("topic", 1)
SIZE = 1_000


def memory() -> pa.Buffer:
    return pa.allocate_buffer(SIZE)


@pytest.mark.parametrize(
    "reported", [1, 30, 100, 0, 999], ids=["told before", "later", "next buffer", "copied", "never"]
)
def test_a_report_that_does_not_begin_with_the_oldest_row_keeps_all_memory(reported):
    buffers = BorrowedBuffers(10 * SIZE)
    assert buffers.borrow(HERE, memory(), 100) == 1
    buffers.borrow(HERE, memory(), 100)
    buffers.give_back(1, 10)
    buffers.give_back(reported, 100)
    assert not buffers.in_order
    buffers.give_back(11, 190)
    assert buffers.borrowed_bytes == 2 * SIZE


def test_once_enough_is_kept_rows_are_to_be_copied_and_their_order_goes_on():
    columns = [pa.array(["x" * SIZE]) for _ in range(3)]
    buffers = BorrowedBuffers(2 * SIZE + 100)
    numbers = []
    for column in columns:
        room = buffers.room_for(column)
        assert (room is None) == (column is columns[2])
        numbers.append(buffers.borrow(HERE, room, 1))
    assert buffers.room_for(columns[1]) is not None, "it is kept already"
    for number in numbers:
        buffers.give_back(number, 1)
    assert (buffers.borrowed_bytes, buffers.in_order) == (0, True)
    assert BorrowedBuffers(10).room_for(columns[0]) is not None, "one piece may be larger than all are to be together"


def test_of_a_batch_from_spark_the_memory_of_all_columns_is_counted():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"key": pa.string(), "value": pa.string()})) as stream:
        stream.write_batch(pa.record_batch({"key": ["k" * 5 * SIZE], "value": ["v"]}))
    (rows,) = pa.ipc.open_stream(pa.py_buffer(sink.getvalue().to_pybytes()))
    room = BorrowedBuffers(1).room_for(rows.column("value"))
    assert room.size > 5 * SIZE


@pytest.mark.parametrize("seed", range(20))
def test_of_any_schedule_what_is_kept_is_what_has_not_arrived(seed):
    """When two reports arrive in the wrong order, no more memory is released from then on."""
    chance, buffers = random.Random(seed), BorrowedBuffers(10**9)
    # For each partition, the undelivered rows and their memory.
    waiting: dict[tuple[str, int], deque[tuple[int, pa.Buffer]]] = {HERE: deque(), THERE: deque()}
    for step in range(600):
        place, rows = chance.choice([HERE, THERE]), chance.randrange(1, 9)
        line = waiting[place]
        if chance.random() < 0.4:
            lent = memory()
            first = buffers.borrow(place, lent, rows)
            line.extend((first + number, lent) for number in range(rows))
        elif step > 400 and len(line) > rows:
            skipped = chance.randrange(1, len(line))
            before = buffers.borrowed_bytes
            buffers.give_back(line[skipped][0], 1)
            assert (buffers.borrowed_bytes, buffers.in_order) == (before, False)
            return
        elif line:
            rows = min(rows, len(line))
            buffers.give_back(line[0][0], rows)
            for _ in range(rows):
                line.popleft()
        assert buffers.borrowed_bytes == SIZE * len({lent.address for each in waiting.values() for _, lent in each})
        assert buffers.in_order
    pytest.fail("no two reports have changed places")
