from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkonce.errors import ConfigurationError
from sparkonce.protocol.state import Phase
from sparkonce_lab.faults import ENDS_THE_DRIVER, OF_REQUESTS, OF_THE_QUERY, Fault
from sparkonce_lab.schedule import EVERY_BATCH, FIRST_BATCH, Choice, Step, draw

REQUESTS = ("prepare", "commit")


def choice(fault: Fault, system: str) -> Choice:
    return Choice(
        fault=fault,
        system=system if fault.of_a_system else "",
        requests=REQUESTS if fault in OF_REQUESTS else (),
    )


ALL = sorted(
    {choice(fault, system) for fault in Fault for system in ("kafka", "postgres")},
    key=lambda one: (one.fault, one.system),
)
SOME = st.lists(st.sampled_from(ALL), min_size=1, unique=True)
SEEDS = st.integers(0, 2**63)
untimed = settings(max_examples=25)


def names(phases: tuple[Phase, ...]) -> set[str]:
    return {phase.name for phase in phases}


@given(seed=SEEDS, count=st.integers(0, 60), choices=SOME)
@untimed
def test_the_same_seed_draws_the_same_schedule(seed: int, count: int, choices: list[Choice]) -> None:
    steps = draw(seed, count, choices)
    assert draw(seed, count, choices) == steps
    assert [step.number for step in steps] == list(range(1, count + 1))


@given(seed=SEEDS, count=st.integers(0, 60), more=st.integers(0, 20), choices=SOME)
@untimed
def test_a_longer_schedule_begins_like_a_shorter_one(seed: int, count: int, more: int, choices: list[Choice]) -> None:
    assert draw(seed, count + more, choices)[:count] == draw(seed, count, choices)


def test_other_seeds_and_amounts() -> None:
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


@given(seed=SEEDS, count=st.integers(0, 90), choices=SOME)
@untimed
def test_every_choice_comes_as_often_as_every_other(seed: int, count: int, choices: list[Choice]) -> None:
    often = Counter((step.fault, step.system) for step in draw(seed, count, choices))
    counts = [often[one.fault, one.system] for one in choices]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == count


@given(seed=SEEDS, count=st.integers(1, 90), choices=SOME)
@untimed
def test_a_first_batch_is_struck_only_where_there_is_one(seed: int, count: int, choices: list[Choice]) -> None:
    steps = draw(seed, count, choices)
    before = [None, *steps[:-1]]
    for last, step in zip(before, steps, strict=True):
        assert step.phase in names(EVERY_BATCH + FIRST_BATCH)
        if step.phase in names(FIRST_BATCH):
            assert last is not None
            assert last.fault in ENDS_THE_DRIVER
            assert step.batches == 0
        else:
            assert step.batches >= 1


@given(seed=SEEDS, choices=SOME)
@example(seed=223, choices=[Choice(fault=Fault.EXPIRED), Choice(fault=Fault.BLACK_HOLE, system="kafka")])
@untimed
def test_every_phase_comes_up(seed: int, choices: list[Choice]) -> None:
    steps = draw(seed, 40 * len(choices), choices)
    struck = {step.phase for step in steps if step.fault is not Fault.EXPIRED}
    if any(one.fault is not Fault.EXPIRED for one in choices):
        assert names(EVERY_BATCH) <= struck


@given(seed=SEEDS, count=st.integers(1, 90))
@untimed
def test_a_step_has_what_its_fault_needs(seed: int, count: int) -> None:
    for step in draw(seed, count, ALL):
        assert bool(step.system) == (step.fault not in OF_THE_QUERY)
        assert (step.request in REQUESTS) == (step.fault in OF_REQUESTS)
        assert step.phase == "FINISHING" or step.fault is not Fault.EXPIRED
        assert bool(step.amount) == (step.fault in (Fault.CLOCK_JUMPED, Fault.OTHER_PARALLELISM))
        assert step.lasts_ms > 0


@given(seed=SEEDS, count=st.integers(0, 40), choices=SOME)
@untimed
def test_a_step_goes_to_a_file_and_back(seed: int, count: int, choices: list[Choice]) -> None:
    steps = draw(seed, count, choices)
    assert [Step.of_json(json.loads(json.dumps(step.to_json()))) for step in steps] == steps


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
def test_a_step_that_is_not_what_it_must_be(changed: dict[str, Any]) -> None:
    assert Step.of_json(GOOD).request == "commit"
    with pytest.raises(ConfigurationError, match="A step of the schedule cannot be read") as caught:
        Step.of_json({**GOOD, **changed})
    assert caught.value.next_step


@pytest.mark.parametrize("missing", ["number", "fault", "phase", "system", "request"])
def test_a_step_without_a_field(missing: str) -> None:
    with pytest.raises(ConfigurationError, match=missing):
        Step.of_json({name: value for name, value in GOOD.items() if name != missing})


@pytest.mark.parametrize("fields", [None, [], "driver-killed", 7])
def test_what_is_no_step_at_all(fields: Any) -> None:
    with pytest.raises(ConfigurationError, match="A step of the schedule cannot be read"):
        Step.of_json(fields)


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_is_put_into_words(fault: Fault) -> None:
    assert fault.words
    assert fault.of_a_system != (fault in OF_THE_QUERY)
