"""A query reports only once that its batches have too few rows for their slots."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.driver.progress import BatchProgress
from sparkonce.spark.start.first_batch import SlotAdvice

TWO_CORES: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
MANY, FINE = 17, 16


def observe(advice: SlotAdvice, *, rows: int | None, transactions: int, batch: int = 3) -> None:
    done = BatchProgress(
        batch=batch,
        rows={"kafka": 10},
        transactions=transactions,
        recovered=False,
        healed=0,
        seconds={},
        finished_at_ms=0,
    )
    advice.observe(TWO_CORES, rows, done)


def test_a_batch_with_few_rows_for_its_slots_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    advice = SlotAdvice(is_needed=True)
    with caplog.at_level(logging.WARNING, "sparkonce"):
        for batch in (3, 4):
            observe(advice, rows=MANY * 1000 - 1, transactions=MANY, batch=batch)
    assert caplog.messages == [
        "Batch 3 read 16999 rows, and wrote 17 transactions: they cost more than the rows. Next: Group small batches "
        "to fewer slots, by ExactlyOnce(..., rows_per_slot=10000)."
    ]


@pytest.mark.parametrize(
    ("is_needed", "given"),
    [
        (False, {"rows": 10, "transactions": MANY}),
        (True, {"rows": 10, "transactions": FINE}),
        (True, {"rows": MANY * 1000, "transactions": MANY}),
        (True, {"rows": None, "transactions": MANY}),
    ],
    ids=["grouped already", "few slots", "many rows", "the first batch"],
)
def test_no_other_batch_is_named(is_needed: bool, given: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sparkonce"):
        observe(SlotAdvice(is_needed=is_needed), **given)
    assert caplog.messages == []
