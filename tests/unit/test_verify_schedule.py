from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkonce.errors import ConfigurationError
from sparkonce.protocol.state import Phase
from sparkonce_lab.faults import OF_REQUESTS, OF_THE_QUERY, Fault
from sparkonce_lab.history import ROWS
from sparkonce_lab.schedule import EVERY_BATCH, FIRST_BATCH, Choice, Step, draw
from sparkonce_lab.workload import CHUNK_ROWS, CLOSING_KEY, Workload

REQUESTS = ("prepare", "commit")


ALL = sorted(
    {
        Choice(
            fault=fault, system=system if fault.of_a_system else "", requests=REQUESTS if fault in OF_REQUESTS else ()
        )
        for fault in Fault
        for system in ("kafka", "postgres")
    },
    key=lambda one: (one.fault, one.system),
)
SOME = st.lists(st.sampled_from(ALL), min_size=1, unique=True)
SEEDS = st.integers(0, 2**63)
untimed = settings(max_examples=25)


def names(phases: tuple[Phase, ...]) -> set[str]:
    return {phase.name for phase in phases}


@given(seed=SEEDS, count=st.integers(0, 60), choices=SOME)
@untimed
def test_the_same_seed_draws_the_same_schedule(seed, count, choices):
    steps = draw(seed, count, choices)
    assert draw(seed, count, choices) == steps
    assert [step.number for step in steps] == list(range(1, count + 1))


def test_other_seeds_and_amounts():
    assert draw(1, 30, ALL) != draw(2, 30, ALL)

    assert names(FIRST_BATCH) <= {step.phase for step in draw(3, 200, ALL)}

    amounts = [step.amount for step in draw(5, 60, [Choice(fault=Fault.OTHER_PARALLELISM)])]
    assert all(amount != before for before, amount in pairwise(amounts))
    assert set(amounts) == {1, 2, 3, 4, 5, 6}

    lasts = Counter(step.lasts_ms for step in draw(5, 400, ALL))
    assert lasts[20_000] > 0
    assert lasts[75_000] > 0
    assert lasts[20_000] + lasts[75_000] < 100

    with pytest.raises(ConfigurationError, match="No fault can be injected"):
        draw(1, 1, [])

    step = Step.of_json({"number": 1, "fault": "driver-killed", "phase": "WRITING"})
    assert step == Step(number=1, fault=Fault.DRIVER_KILLED, phase="WRITING")


@given(seed=SEEDS, choices=SOME)
@example(seed=223, choices=[Choice(fault=Fault.EXPIRED), Choice(fault=Fault.BLACK_HOLE, system="kafka")])
@untimed
def test_every_phase_comes_up(seed, choices):
    steps = draw(seed, 40 * len(choices), choices)
    struck = {step.phase for step in steps if step.fault is not Fault.EXPIRED}
    if any(one.fault is not Fault.EXPIRED for one in choices):
        assert names(EVERY_BATCH) <= struck


@given(seed=SEEDS, count=st.integers(1, 90))
@untimed
def test_a_step_has_what_its_fault_needs(seed, count):
    for step in draw(seed, count, ALL):
        assert bool(step.system) == (step.fault not in OF_THE_QUERY)
        assert (step.request in REQUESTS) == (step.fault in OF_REQUESTS)
        assert step.phase == "FINISHING" or step.fault is not Fault.EXPIRED
        assert bool(step.amount) == (step.fault in (Fault.CLOCK_JUMPED, Fault.OTHER_PARALLELISM))
        assert step.lasts_ms > 0


GOOD = {"number": 1, "fault": "reply-lost", "phase": "FINISHING", "system": "kafka", "request": "commit"}


@pytest.mark.parametrize(
    "changed",
    [
        {"fault": "gone"},
        {"fault": None},
        {"phase": "SOMEWHERE"},
        {"phase": ["WRITING"]},
        {"number": "1"},
        {"number": 1.5},
        {"number": None},
        {"batches": -1},
        {"batches": True},
        {"delay_ms": "0"},
        {"lasts_ms": -1},
        {"amount": 0.5},
        {"system": ""},
        {"system": None},
        {"request": ""},
        {"fault": "cut"},
        {"fault": "driver-killed", "request": ""},
        {"colour": "red"},
    ],
)
def test_a_step_that_is_not_what_it_must_be(changed):
    assert Step.of_json(GOOD).request == "commit"
    with pytest.raises(ConfigurationError, match="A step of the schedule cannot be read") as caught:
        Step.of_json({**GOOD, **changed})
    assert caught.value.next_step


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
def test_each_keys_numbers_are_in_order_and_without_gaps(workload, rows):
    numbers: dict[int, list[int]] = defaultdict(list)
    for row in written(workload, rows).to_pylist():
        numbers[row["key"]].append(row["number"])
    assert all(found == list(range(len(found))) for found in numbers.values())
    assert all(0 <= key < workload.keys for key in numbers)
    assert CLOSING_KEY not in numbers


@given(workload=WORKLOADS, rows=COUNTS)
@few
def test_event_time_never_goes_back(workload, rows):
    times = written(workload, rows)["event_ms"].to_pylist()
    assert times == sorted(times)
    assert times == [workload.event_ms(row) for row in range(rows)]
    assert all(time >= workload.started_ms for time in times[:1])


@given(workload=WORKLOADS, rows=COUNTS)
@few
def test_what_must_come_out_is_what_a_naive_computation_gives(workload, rows):
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
