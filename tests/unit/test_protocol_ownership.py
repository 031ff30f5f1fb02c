"""Ids are values that are compared field by field. A worker's ids are reused according to one rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.protocol.ownership import (
    HELD,
    NAME_PREFIX_LIMIT_BYTES,
    LanePool,
    Token,
    TransactionalId,
    TransactionName,
    short_query,
)

QUERY = "5f6a2c1e0000"


def hexadecimal(length: int) -> st.SearchStrategy[str]:
    return st.text("0123456789abcdef", min_size=length, max_size=length)


prefixes = st.text(min_size=1, max_size=30) | st.sampled_from(
    ["orders", "orders-eu", "a.b.c", "...", "orders.5f6a2c1e0000.3-00000000.000000000001-0", "with\nline"]
)
ids = st.builds(
    TransactionalId,
    prefix=prefixes,
    query=hexadecimal(12),
    token=st.builds(Token, st.integers(0, 10**18), hexadecimal(8)),
    worker=hexadecimal(12),
    lane=st.integers(0, 10**8),
)


names = st.builds(
    TransactionName,
    prefix=prefixes,
    query=hexadecimal(12),
    token=st.builds(Token, st.integers(0, 10**18), hexadecimal(8)),
    batch=st.integers(0, 10**18),
    slot=st.integers(0, 10**8),
    copy=hexadecimal(12),
)


@given(names)
def test_a_name_is_parsed_to_what_it_was_made_of(one):
    assert TransactionName.parse(str(one)) == one


def test_names_belong_to_exactly_one_prefix_query_and_run():
    token = Token(3, "0a1b2c3d")
    name = TransactionName(prefix="orders", query=QUERY, token=token, batch=1, slot=2, copy="0" * 12)
    mine = frozenset({token, Token(4, "0a1b2c3d")})
    assert name.belongs_to("orders", QUERY, mine)
    assert not name.belongs_to("orders-eu", QUERY, mine)
    assert not name.belongs_to("order", QUERY, mine)
    assert not name.belongs_to("orders", "0" * 12, mine)
    assert not name.belongs_to("orders", QUERY, frozenset({Token(3, "0a1b2c3e")}))

    longest = TransactionName(
        prefix="p" * NAME_PREFIX_LIMIT_BYTES,
        query=QUERY,
        token=Token(10**19 - 1, "0a1b2c3d"),
        batch=10**19 - 1,
        slot=10**9 - 1,
        copy="0" * 12,
    )
    assert TransactionName.parse(str(longest)) == longest
    assert len(str(longest).encode()) <= 200

    assert not an_id().belongs_to("orders", QUERY, frozenset())

    assert Token(9, "ffffffff") < Token(10, "00000000")

    assert short_query("5F6A2C1E-0000-4000-8000-000000000000") == QUERY


def an_id(**changes: object) -> TransactionalId:
    values = {"prefix": "orders", "query": QUERY, "token": Token(3, "0a1b2c3d"), "worker": "0" * 12, "lane": 0}
    return TransactionalId(**(values | changes))


@given(ids)
def test_an_id_is_parsed_to_what_it_was_made_of(one):
    assert TransactionalId.parse(str(one)) == one


@pytest.mark.parametrize(
    "text",
    [
        *("", "orders", "orders-eu.something", f".{QUERY}.3-0a1b2c3d.000000000000-0"),
        *(f"orders.{QUERY}.03-0a1b2c3d.000000000000-0", f"orders.{QUERY}.3-0a1b2c3d.000000000000-00"),
        *(f"orders.{QUERY}.3-0A1B2C3D.000000000000-0", f"orders.{QUERY}.3-0a1b2c3d.000000000000-0 "),
        *(f"orders.{QUERY}.3-0a1b2c3d.000000000000-0\n", f"orders.{QUERY}.-3-0a1b2c3d.000000000000-0"),
        *(f"orders.{QUERY}.3-0a1b2c3d.000000000000-", f"orders.{QUERY}.\u0663-0a1b2c3d.000000000000-0"),
        f"orders.{QUERY[:-1]}.3-0a1b2c3d.000000000000-0",
    ],
)
def test_a_foreign_id_is_none(text):
    assert TransactionalId.parse(text) is None


@pytest.mark.parametrize(
    "changes",
    [
        *({"prefix": prefix} for prefix in ("orders-eu", "order", "orders.eu")),
        *({"token": token} for token in (Token(4, "0a1b2c3d"), Token(3, "0a1b2c3e"))),
        {"query": "5f6a2c1e0001"},
    ],
    ids=str,
)
def test_an_id_belongs_to_exactly_its_own(changes):
    mine = frozenset({Token(3, "0a1b2c3d")})
    assert an_id().belongs_to("orders", QUERY, mine)
    assert not an_id(**changes).belongs_to("orders", QUERY, mine)


def test_lanes_that_are_held_are_not_lent():
    pool, first = LanePool().lend(0)
    pool, second = pool.lend(0)
    assert (first, second, pool.lanes) == (0, 1, (HELD, HELD))

    pool, number = LanePool().lend(8)
    assert pool.give_back(number, 8).lend(3)[1] == 1

    pool, first = LanePool().lend(4)
    pool, second = pool.lend(4)
    pool = pool.give_back(first, 4).give_back(second, 4)
    pool, third = pool.lend(20)
    assert third not in (first, second)
    assert pool.lend(20)[1] not in (first, second, third)
    assert pool.give_back(third, 20).lend(20)[1] == first


@pytest.mark.parametrize(("batch", "lane"), [(5, 2), (6, 0), (7, 0)])
def test_a_lane_of_batch_4_is_lent_again_from_batch_6_on(batch, lane):
    pool, first = LanePool().lend(4)
    pool, second = pool.give_back(first, 4).lend(5)
    assert pool.give_back(second, 5).lend(batch)[1] == lane


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=40))
def test_no_lane_carries_two_transactions_within_two_batches(steps):
    """Each step advances by some batches. Then some tasks of the batch take a lane each, and return it."""
    pool, batch = LanePool(), 0
    used: dict[int, int] = {}
    for ahead, tasks in steps:
        batch += ahead
        taken = []
        for _ in range(tasks):
            pool, lane = pool.lend(batch)
            assert lane not in taken
            assert used.get(lane, -2) <= batch - 2
            taken.append(lane)
        for lane in taken:
            pool = pool.give_back(lane, batch)
            used[lane] = batch
