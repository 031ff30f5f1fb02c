from __future__ import annotations

import json
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkonce_lab.history import ROWS
from sparkonce_lab.workload import CHUNK_ROWS, CLOSING_KEY, Workload

WORKLOADS = st.builds(
    Workload,
    seed=st.integers(0, 2**32),
    partitions=st.integers(1, 8),
    keys=st.integers(1, 100),
    skew=st.floats(0, 2),
    rows_per_second=st.integers(1, 50_000),
    window_ms=st.integers(1, 60_000),
    started_ms=st.sampled_from([0, 1_700_000_000_000]),
)
COUNTS = st.integers(0, 3 * CHUNK_ROWS)
few = settings(max_examples=25)


def written(workload: Workload, rows: int) -> pa.Table:
    schema = pa.schema([(name, pa.int64()) for name in ("key", "number", "amount", "event_ms")])
    return pa.Table.from_batches(workload.chunks(rows), schema)


@given(workload=WORKLOADS, rows=COUNTS)
@few
def test_as_many_rows_as_asked_for_in_chunks(workload: Workload, rows: int) -> None:
    sizes = [chunk.num_rows for chunk in workload.chunks(rows)]
    assert sum(sizes) == rows
    assert all(size == CHUNK_ROWS for size in sizes[:-1])
    assert all(0 < size <= CHUNK_ROWS for size in sizes[-1:])


@given(workload=WORKLOADS, rows=COUNTS)
@few
def test_each_keys_numbers_are_in_order_and_without_gaps(workload: Workload, rows: int) -> None:
    numbers: dict[int, list[int]] = defaultdict(list)
    for row in written(workload, rows).to_pylist():
        numbers[row["key"]].append(row["number"])
    assert all(found == list(range(len(found))) for found in numbers.values())
    assert all(0 <= key < workload.keys for key in numbers)
    assert CLOSING_KEY not in numbers


@given(workload=WORKLOADS, rows=COUNTS, more=COUNTS)
@few
def test_cut_anywhere_it_is_a_prefix(workload: Workload, rows: int, more: int) -> None:
    assert written(workload, rows).equals(written(workload, rows + more).slice(0, rows))


@given(workload=WORKLOADS, rows=COUNTS)
@few
def test_event_time_never_goes_back(workload: Workload, rows: int) -> None:
    times = written(workload, rows)["event_ms"].to_pylist()
    assert times == sorted(times)
    assert times == [workload.event_ms(row) for row in range(rows)]
    assert all(time >= workload.started_ms for time in times[:1])


@given(workload=WORKLOADS, rows=COUNTS)
@few
def test_what_must_come_out_is_what_a_naive_computation_gives(workload: Workload, rows: int) -> None:
    table = workload.expected(rows)
    assert table.schema == ROWS
    sums: dict[tuple[int, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    single = []
    for row in written(workload, rows).to_pylist():
        single.append(("row", row["key"], row["number"], row["amount"], 1))
        window = row["event_ms"] - row["event_ms"] % workload.window_ms
        amount, count = sums[row["key"], window]
        sums[row["key"], window] = (amount + row["amount"], count + 1)
    summed = [("sum", key, window, amount, count) for (key, window), (amount, count) in sums.items()]
    found = [tuple(row.values()) for row in table.to_pylist()]
    assert found[:rows] == single
    assert sorted(found[rows:]) == sorted(summed)


@given(workload=WORKLOADS)
@few
def test_a_workload_goes_to_a_file_and_back(workload: Workload) -> None:
    assert Workload(**json.loads(json.dumps(workload.to_json()))) == workload


def test_rows_depend_on_the_seed_alone() -> None:
    one, other = written(Workload(seed=1), 100), written(Workload(seed=2), 100)
    assert not one["key"].equals(other["key"])
    assert not one["amount"].equals(other["amount"])

    amounts = written(Workload(seed=1), 5_000)["amount"].to_pylist()
    assert min(amounts) < 0 < max(amounts)

    endless = Workload(seed=3).chunks()
    begun = [next(endless) for _ in range(3)]
    assert pa.Table.from_batches(begun).equals(written(Workload(seed=3), 3 * CHUNK_ROWS))


@pytest.mark.parametrize(("skew", "most"), [(0.0, 2), (1.0, 100)])
def test_frequencies_follow_the_skew(skew: float, most: int) -> None:
    keys = written(Workload(seed=1, keys=64, skew=skew), 50_000)["key"].value_counts().to_pylist()
    counts = sorted(each["counts"] for each in keys)
    assert len(counts) == 64
    assert (counts[-1] > 10 * counts[0]) == (skew > 0)
    assert counts[-1] <= most * counts[0]
