"""What judges the examples is judged here, on histories that fit on a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from sparkonce_lab.kafka import Record
from tryout import EnrichmentSample, EtlSample, SumSample, etl, trial
from tryout.checkpoint import Batch, read_batches
from tryout.enrichment import ORDERS, PAYMENTS
from tryout.sample import CLOSING, Row, Sample, text_of
from tryout.windows import into_windows

TOPIC = "t"


def batch(number: int, watermark_ms: int, ends: Mapping[int, int], *, timestamp_ms: int = 0) -> Batch:
    return Batch(number=number, watermark_ms=watermark_ms, timestamp_ms=timestamp_ms, ends={TOPIC: dict(ends)})


def windows(records: list[Record], batches: list[Batch]) -> dict[str, object]:
    found = into_windows(TOPIC, records, batches, time_ms=lambda one, _: one.timestamp_ms, size_ms=10)
    closed = {start: [one.offset for one in some] for start, some in found.closed.items()}
    return {
        "closed": closed,
        "by": found.closed_by,
        "open": {start: [one.offset for one in some] for start, some in found.open.items()},
        "late": [one.offset for one in found.late],
        "unread": [one.offset for one in found.unread],
    }


def test_when_a_window_closes_and_what_is_late() -> None:
    def record(offset: int, time_ms: int, *, partition: int = 0, key: bytes | None = None) -> Record:
        return Record(partition, offset, key, None, time_ms, ())

    records = [record(0, 1), record(1, 9), record(2, 10), record(3, 99)]
    batches = [batch(0, 0, {0: 2}), batch(1, 9, {0: 3}), batch(2, 10, {0: 3})]
    assert windows(records, batches) == {
        "closed": {0: [0, 1]},
        "by": {0: 2},
        "open": {10: [2]},
        "late": [],
        "unread": [3],
    }

    records = [record(0, 1), record(1, 2), record(2, 3)]
    batches = [batch(0, 0, {0: 1}), batch(1, 10, {0: 2}), batch(2, 10, {0: 3})]
    assert windows(records, batches) == {"closed": {0: [0, 1]}, "by": {0: 1}, "open": {}, "late": [2], "unread": []}

    assert EtlSample().began_ms % 20_000 == 0


def test_batches_are_those_that_are_done_with_all_of_their_sources(tmp_path: Path) -> None:
    about = json.dumps({"batchWatermarkMs": 5, "batchTimestampMs": 7, "conf": {}})
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for number in (0, 1):
        sources = [json.dumps({"a": {"0": 3 + number, "1": 4}}), json.dumps({"b": {"0": 1}})]
        (tmp_path / "offsets" / str(number)).write_text("\n".join(["v1", about, *sources]))
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    (tmp_path / "commits" / ".0.crc").write_text("")
    assert read_batches(tmp_path) == [
        Batch(number=0, watermark_ms=5, timestamp_ms=7, ends={"a": {0: 3, 1: 4}, "b": {0: 1}})
    ]
    assert [each.number for each in read_batches(tmp_path, decided=1)] == [0, 1]
    assert read_batches(tmp_path / "nothing") == []
    (tmp_path / "commits" / "0").rename(tmp_path / "commits" / "1")
    with pytest.raises(ValueError, match="no longer each batch from 0 on"):
        read_batches(tmp_path)


def test_the_sum_of_each_customer_and_window_with_rows_that_wait_and_rows_of_nobody() -> None:
    sample = SumSample(count=8)
    sent = list(sample.messages(None)) + list(sample.closing(None))
    records = [Record(0, offset, one.key, one.value, 0, ()) for offset, one in enumerate(sent)]
    far = 2 * sample.began_ms
    ends = {"payments": {0: len(sent)}}
    done = Batch(number=3, watermark_ms=far, timestamp_ms=0, ends=ends)
    outcome = sample.outcome({"payments": records[:-1]}, [done])
    assert (len(outcome.rows), set(outcome.rows.values()), outcome.waiting, outcome.unread) == (8, {3}, 0, 0)
    early = Batch(number=3, watermark_ms=0, timestamp_ms=0, ends=ends)
    assert sample.outcome({"payments": records}, [early]).waiting == 8
    assert sample.outcome({"payments": records}, []).unread == 8


def test_processing_time_is_the_time_of_the_batch_that_reads() -> None:
    sample = SumSample(count=2, clock="processing", window="1 second")
    records = [Record(0, offset, None, one.value, 0, ()) for offset, one in enumerate(sample.messages(None))]
    batches = [
        Batch(number=0, watermark_ms=0, timestamp_ms=1500, ends={"payments": {0: 1}}),
        Batch(number=1, watermark_ms=1500, timestamp_ms=2500, ends={"payments": {0: 2}}),
        Batch(number=2, watermark_ms=2500, timestamp_ms=2600, ends={"payments": {0: 2}}),
    ]
    outcome = sample.outcome({"payments": records}, batches)
    assert [(json.loads(row.value)["window"], number) for row, number in outcome.rows.items()] == [
        ("1970-01-01 00:00:01", 2)
    ]
    assert outcome.waiting == 1


def test_a_record_of_the_future_is_of_the_batch_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etl, "_register", lambda _: 1)
    sample = EtlSample(count=1)
    value = next(iter(sample.messages(None))).value
    now, window_ms = sample.began_ms, 20_000
    times = (now - 1, now + 1_000, now + 10 * window_ms)
    records = [Record(0, offset, None, value, time_ms, ()) for offset, time_ms in enumerate(times)]
    batches = [
        Batch(number=0, watermark_ms=0, timestamp_ms=now + 5_000, ends={"flink-identify": {0: 3}}),
        Batch(number=1, watermark_ms=now + window_ms, timestamp_ms=0, ends={"flink-identify": {0: 3}}),
    ]
    outcome = sample.outcome({"flink-identify": records}, batches)
    assert (sorted(row.key for row in outcome.rows), outcome.waiting) == ([text_of(now - window_ms), text_of(now)], 0)


def test_a_payment_comes_with_its_order_once_unless_it_was_late() -> None:
    order = {"order_id": "o", "customer": "c", "amount": 1, "ordered_at": "2026-01-01T00:00:00.000Z"}
    paid = {"payment_id": "p", "order_id": "o", "method": "card", "paid_at": "2026-01-01T00:10:00.000Z"}
    late = {**paid, "payment_id": "q", "paid_at": "2026-01-01T00:10:00.001Z"}
    early = {**paid, "payment_id": "r", "paid_at": "2025-12-31T23:59:59.999Z"}
    sources = {
        ORDERS: [Record(0, offset, None, json.dumps(order).encode(), 0, ()) for offset in (0, 1)],
        PAYMENTS: [
            Record(0, offset, None, json.dumps(one).encode(), 0, ())
            for offset, one in enumerate((paid, late, paid, early))
        ],
    }
    batches = [
        Batch(number=0, watermark_ms=0, timestamp_ms=0, ends={ORDERS: {0: 1}, PAYMENTS: {0: 0}}),
        Batch(number=1, watermark_ms=0, timestamp_ms=0, ends={ORDERS: {0: 2}, PAYMENTS: {0: 4}}),
    ]
    outcome = EnrichmentSample().outcome(sources, batches)
    value = '{"order_id":"o","customer":"c","amount":1,"payment_id":"p","method":"card"}'
    assert dict(outcome.rows) == {Row("o", value): 1}
    assert EnrichmentSample().outcome(sources, []).unread == 6


@pytest.mark.parametrize("sample", [SumSample(), EnrichmentSample()], ids=lambda one: type(one).__name__)
def test_a_sample_is_the_same_again_and_has_no_closing_rows(sample: Sample) -> None:
    messages = list(sample.messages(None))
    assert messages == list(sample.messages(None))
    assert all(message.key != CLOSING for message in messages)
    assert {message.topic for message in messages} == set(sample.sources)


def test_rows_that_are_missing_or_came_twice_or_are_nobodys_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
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
