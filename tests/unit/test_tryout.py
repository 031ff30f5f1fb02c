from __future__ import annotations

from pathlib import Path

import pytest

from sparkonce_lab.kafka import Record
from tryout import EnrichmentSample, SumSample, trial
from tryout.checkpoint import Batch
from tryout.sample import CLOSING, Row


@pytest.mark.parametrize("sample", [SumSample(), EnrichmentSample()], ids=lambda one: type(one).__name__)
def test_a_sample_is_the_same_again_and_has_no_closing_rows(sample):
    messages = list(sample.messages(None))
    assert messages == list(sample.messages(None))
    assert all(message.key != CLOSING for message in messages)
    assert {message.topic for message in messages} == set(sample.sources)


def test_rows_that_are_missing_or_came_twice_or_are_nobodys_are_counted(monkeypatch):
    sample = SumSample(count=8)
    sources = [Record(0, offset, None, one.value, 0, ()) for offset, one in enumerate(sample.messages(None))]
    batches = [Batch(number=0, watermark_ms=2 * sample.began_ms, timestamp_ms=0, ends={"payments": {0: 8}})]
    rows = list(sample.outcome({"payments": sources}, batches).rows)
    target: list[Record] = []
    topics = {"payments": sources, "sums": target}
    monkeypatch.setattr(trial, "read_batches", lambda *_: batches)
    monkeypatch.setattr(trial, "read_committed", lambda _, topic, **__: topics[topic])
    judge = trial.Trial(sample, bootstrap="", checkpoint=Path(), registry=None)

    def came(*found: Row) -> tuple[int, int, int, bool]:
        target[:] = [Record(0, offset, row.key.encode(), row.value.encode(), 0, ()) for offset, row in enumerate(found)]
        count = judge.count()
        return count.missing, count.doubled, count.strange, count.is_done

    assert came(*rows) == (0, 0, 0, True)
    assert came(*rows[1:]) == (1, 0, 0, False)
    assert came(*rows, rows[0], rows[0]) == (0, 2, 0, False)
    assert came(*rows, Row("nobody", rows[0].value)) == (0, 0, 1, False)
