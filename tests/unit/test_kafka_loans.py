"""Memory that librdkafka reads rows from: kept until they have arrived, and no longer."""

from __future__ import annotations

import random
from collections import deque

import pytest

from sparkonce.sinks.kafka.loans import Loans

HERE, THERE = ("topic", 0), ("topic", 1)


def test_a_report_gives_back_the_oldest_loans_of_its_partition() -> None:
    loans = Loans()
    first, _, other = loans.lend(HERE, "a", 10), loans.lend(HERE, "b", 5), loans.lend(THERE, "c", 7)
    loans.give_back(first, 4)
    assert len(loans) == 3
    loans.give_back(first, 8)
    assert len(loans) == 2, "the first is given back, the second in part"
    loans.give_back(other, 7)
    assert len(loans) == 1
    assert loans.in_order


@pytest.mark.parametrize("reported", [2, 99, 0], ids=["not the oldest", "never lent", "a copied row"])
def test_a_report_out_of_order_keeps_all_memory(reported: int) -> None:
    loans = Loans()
    first = loans.lend(HERE, "a", 1)
    loans.lend(HERE, "b", 1)
    loans.give_back(reported, 1)
    assert not loans.in_order
    loans.give_back(first, 1)
    assert len(loans) == 2


def test_a_report_of_more_rows_than_were_lent_keeps_all_memory() -> None:
    loans = Loans()
    number = loans.lend(HERE, "a", 3)
    loans.lend(THERE, "b", 3)
    loans.give_back(number, 4)
    assert not loans.in_order
    assert len(loans) == 1


@pytest.mark.parametrize("seed", range(20))
def test_of_any_schedule_what_is_lent_is_what_has_not_arrived(seed: int) -> None:
    chance, loans = random.Random(seed), Loans()
    places = [HERE, THERE, ("another", 0)]
    # Of each partition the rows that have not arrived, each by the number of its loan.
    waiting: dict[tuple[str, int], deque[int]] = {place: deque() for place in places}
    for _ in range(500):
        place = chance.choice(places)
        if chance.random() < 0.4:
            rows = chance.randrange(1, 9)
            waiting[place].extend([loans.lend(place, object(), rows)] * rows)
        elif waiting[place]:
            rows = chance.randrange(1, len(waiting[place]) + 1)
            loans.give_back(waiting[place][0], rows)
            for _ in range(rows):
                waiting[place].popleft()
        assert len(loans) == len({number for line in waiting.values() for number in line})
    assert loans.in_order
