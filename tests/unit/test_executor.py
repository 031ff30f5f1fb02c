from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from sparkonce.dead_letters import DEAD_LETTER_SCHEMA
from sparkonce.driver.work import check_handles
from sparkonce.errors import PrepareError
from sparkonce.executor import SinkTask, SlotTask, write_slot
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import FINGERPRINT_MODULUS, Handle
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner, Refused, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext

OWNER = Owner(query="0123456789ab", token=Token(0, "00000000"), facts={"prefix": "p"})


class Recorder(TwoPhaseCommitSink):
    def __init__(self, name: str, calls: list[str], guarantee: Guarantee = Guarantee.EXACTLY_ONCE) -> None:
        super().__init__(name, guarantee)
        self.calls = calls
        self.fails_at: set[str] = set()
        self.contexts: list[WriterContext] = []
        self.written: list[pa.RecordBatch] = []
        self.fields: Mapping[str, str | int] = {"id": name}

    def note(self, call: str) -> None:
        self.calls.append(f"{self.name}.{call}")
        if call in self.fails_at:
            raise RuntimeError(f"{self.name} cannot {call}")

    def writer(self, context: WriterContext) -> SinkWriter:
        self.note("writer")
        self.contexts.append(context)
        return RecordingWriter(self)

    def committer(self) -> SinkCommitter:
        raise NotImplementedError


class RecordingWriter(SinkWriter):
    def __init__(self, sink: Recorder) -> None:
        self._sink = sink

    def begin(self) -> None:
        self._sink.note("begin")

    def write(self, rows: pa.RecordBatch) -> None:
        self._sink.note("write")
        self._sink.written.append(rows)

    def prepare(self) -> Mapping[str, str | int]:
        self._sink.note("prepare")
        return self._sink.fields

    def abort(self) -> None:
        self._sink.note("abort")

    def close(self) -> None:
        self._sink.note("close")


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def a(calls) -> Recorder:
    return Recorder("a", calls)


@pytest.fixture
def b(calls) -> Recorder:
    return Recorder("b", calls)


def piece(numbers: Sequence[int], hashes: Sequence[int] | None = None) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "number": pa.array(numbers, pa.int64()),
            "other": pa.array([str(number) for number in numbers], pa.string()),
            "hash_a": pa.array(numbers if hashes is None else hashes, pa.int64()),
            "hash_b": pa.array([7] * len(numbers), pa.int64()),
        }
    )


def task(*sinks: Recorder, only: frozenset[tuple[str, int]] | None = None) -> SlotTask:
    columns = {"a": ("number",), "b": ("other", "number")}
    parts = tuple(
        SinkTask(sink=sink, owner=OWNER, columns=columns[sink.name], fingerprint=f"hash_{sink.name}") for sink in sinks
    )
    return SlotTask(batch=4, sinks=parts, only=only)


def write(rows: Iterable[pa.RecordBatch], given: SlotTask, attempt: int = 0) -> list[Handle]:
    return write_slot(rows, given, slot=2, copy="3.17.1", attempt=attempt)


def test_a_slot_is_begun_written_prepared_and_closed(a, calls):
    (handle,) = write([piece([1, 2]), piece([3])], task(a))
    assert calls == ["a.writer", "a.begin", "a.write", "a.write", "a.prepare", "a.close"]
    assert (handle.sink, handle.slot, handle.rows, handle.transaction) == ("a", 2, 3, (("id", "a"),))
    assert handle.opened_ms > 1_600_000_000_000
    assert a.contexts == [WriterContext(owner=OWNER, batch=4, slot=2, copy="3.17.1", columns=("number",))]


def test_no_sink_is_closed_before_all_are_prepared(a, b, calls):
    handles = write([piece([1])], task(a, b))
    assert [handle.sink for handle in handles] == ["a", "b"]
    assert calls[-4:] == ["a.prepare", "b.prepare", "b.close", "a.close"]


@pytest.mark.parametrize("rows", [[], [piece([])], [piece([]), piece([])]], ids=["no piece", "an empty one", "two"])
def test_a_slot_without_rows_opens_nothing_and_returns_a_handle(a, calls, rows):
    assert write(rows, task(a)) == [Handle(sink="a", slot=2)]
    assert calls == ["a.writer", "a.close"]


def test_the_fingerprint_is_the_sum_of_the_hashes_modulo_two_to_the_64(a, b):
    hashes = [-1, 2**63 - 1, -(2**63), 5]
    (handle,) = write([piece([1, 2, 3, 4], hashes)], task(a))
    assert handle.fingerprint == sum(value % FINGERPRINT_MODULUS for value in hashes) % FINGERPRINT_MODULUS

    (handle,) = write([piece([1], [-1]), piece([2], [-2]), piece([3], [-3])], task(a))
    assert handle.fingerprint == FINGERPRINT_MODULUS - 6

    one = write([piece([1, 2, 3], [-9, 2**62, 77])], task(a))
    other = write([piece([3], [77]), piece([2, 1], [2**62, -9])], task(a))
    assert one[0].evidence == other[0].evidence

    assert write([piece([1, 2])], task(a))[0].evidence != write([piece([1, 3])], task(a))[0].evidence

    handles = write([piece([1, 2])], task(a, b))
    assert [handle.fingerprint for handle in handles] == [3, 14]


def test_what_is_not_written_again_is_counted(a, b, calls):
    first = write([piece([1, 2])], task(a, b))
    calls.clear()
    again = write([piece([1, 2])], task(a, b, only=frozenset({("b", 2), ("a", 1)})))
    assert [handle.evidence for handle in again] == [handle.evidence for handle in first]
    assert [handle.transaction for handle in again] == [(), (("id", "b"),)]
    assert {call.split(".")[0] for call in calls} == {"b"}


@pytest.mark.parametrize("call", ["begin", "write", "prepare"])
def test_every_writer_is_aborted_whichever_failed(a, b, calls, call):
    b.fails_at = {call}
    with pytest.raises(RuntimeError, match=f"b cannot {call}"):
        write([piece([1])], task(a, b))
    assert calls[-2:] == ["b.abort", "a.abort"]
    assert not any(noted.endswith("close") for noted in calls)


def test_rows_that_cannot_be_computed_abort_every_writer(a, b, calls):
    def rows() -> Iterator[pa.RecordBatch]:
        yield piece([1])
        raise ZeroDivisionError("in the plan")

    with pytest.raises(ZeroDivisionError):
        write(rows(), task(a, b))
    assert calls[-2:] == ["b.abort", "a.abort"]


def test_an_abort_that_fails_does_not_keep_the_others_from_it(a, b, calls):
    a.fails_at, b.fails_at = {"write"}, {"abort"}
    with pytest.raises(RuntimeError, match="b cannot abort") as caught:
        write([piece([1])], task(a, b))
    assert str(caught.value.__context__) == "a cannot write"
    assert calls[-2:] == ["b.abort", "a.abort"]


def test_rows_that_nothing_would_commit_are_refused(a, calls):
    a.fields = {}
    with pytest.raises(PrepareError, match="prepared 1 rows without returning what commits them"):
        write([piece([1])], task(a))
    assert calls[-1] == "a.abort"


@pytest.mark.parametrize("odd", [True, 1.5, None, 2**64, b"x"])
def test_what_the_log_could_not_keep_is_refused(a, calls, odd):
    a.fields = {"id": "a", "odd": odd}
    with pytest.raises(PrepareError, match="'odd'"):
        write([piece([1])], task(a))
    assert calls[-1] == "a.abort"


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE])
def test_a_retry_writes_again(calls, guarantee):
    sink = Recorder("a", calls, guarantee)
    assert write([piece([1])], task(sink), attempt=1)[0].rows == 1


def test_a_retry_does_not_write_to_an_at_most_once_sink(a, calls):
    weak = Recorder("b", calls, Guarantee.AT_MOST_ONCE)
    with pytest.raises(PrepareError, match="may have been written"):
        write([piece([1])], task(a, weak), attempt=1)
    assert calls == ["a.writer", "a.abort"]


def handles(*keys: tuple[str, int]) -> list[Handle]:
    return [Handle(sink=sink, slot=slot) for sink, slot in keys]


def test_every_slot_of_every_sink():
    assert check_handles(handles(("a", 1), ("b", 0), ("a", 0), ("b", 1)), ["a", "b"]) == ""
    assert check_handles([], ["a", "b"]) == ""
    views_differ = handles(("a", 0), ("b", 0), ("b", 1))
    assert check_handles(views_differ, ["a", "b"]) == ""

    assert check_handles(handles(("a", 0), ("x", 0)), ["a"]) == "handles came back for ['x'], which were not written to"


@pytest.mark.parametrize(
    "keys",
    [[("a", 1)], [("a", 0), ("a", 2)], [("a", 0), ("a", 0)], [("a", 0), ("a", 0), ("a", 1)]],
    ids=["the first is missing", "one between is missing", "one is doubled", "one is doubled beside others"],
)
def test_slots_that_are_missing_or_doubled(keys):
    assert "the slots that returned a handle" in check_handles(handles(*keys), sorted({sink for sink, _ in keys}))


class Choosy(Recorder):
    def writer(self, context: WriterContext) -> SinkWriter:
        super().writer(context)
        return ChoosyWriter(self)


class ChoosyWriter(RecordingWriter):
    def offer(self, rows: pa.RecordBatch) -> Refused:
        numbers = rows["number"].to_pylist()
        odd = [row for row, number in enumerate(numbers) if number % 2]
        if len(odd) < len(numbers):
            self.write(rows.filter(pa.array([number % 2 == 0 for number in numbers])))
        else:
            self._sink.note("refused")
        return Refused(rows=odd, reasons=["It is odd."] * len(odd))


def with_dead_letters(
    a: Recorder, b: Recorder, only: frozenset[tuple[str, int]] | None = None, most: int = 10
) -> SlotTask:
    parts = (
        SinkTask(sink=a, owner=OWNER, columns=("number",), fingerprint="hash_a", dead_letters="b"),
        SinkTask(sink=b, owner=OWNER, columns=tuple(DEAD_LETTER_SCHEMA.names)),
    )
    return SlotTask(batch=4, sinks=parts, only=only, max_refused=most)


def test_refused_rows_go_to_the_other_sink(calls, b):
    a = Choosy("a", calls)
    accepted, refused = write([piece([2, 3, 4]), piece([6])], with_dead_letters(a, b))
    assert (accepted.rows, accepted.fingerprint) == (3, 12)
    assert (refused.rows, refused.fingerprint) == (1, 3)
    (dead_letters,) = b.written
    assert dead_letters.to_pylist() == [
        {"sink": "a", "batch": 4, "slot": 2, "reason": "It is odd.", "row": '{"number": 3}'}
    ]
    assert [number for rows in a.written for number in rows["number"].to_pylist()] == [2, 4, 6]


def test_a_transaction_of_refused_rows_alone_is_aborted(calls, b):
    accepted, refused = write([piece([1, 3])], with_dead_letters(Choosy("a", calls), b))
    assert (accepted.rows, accepted.transaction, refused.rows) == (0, (), 2)
    assert "a.abort" in calls
    assert "a.prepare" not in calls


def test_a_part_that_is_only_counted_counts_what_is_accepted(calls, b):
    whole = write([piece([1, 2, 3, 4])], with_dead_letters(Choosy("a", calls), b))
    calls.clear()
    counted = write([piece([1, 2, 3, 4])], with_dead_letters(Choosy("a", calls), b, only=frozenset({("b", 2)})))
    assert [one.evidence for one in counted] == [one.evidence for one in whole]
    assert [bool(one.transaction) for one in counted] == [False, True]
    assert "a.abort" in calls
    assert "a.prepare" not in calls

    whole = write([piece([1, 2, 3, 4])], with_dead_letters(Choosy("a", calls), b))
    calls.clear()
    counted = write([piece([1, 2, 3, 4])], with_dead_letters(Choosy("a", calls), b, only=frozenset({("a", 2)})))
    assert [one.evidence for one in counted] == [one.evidence for one in whole]
    assert not any(call.startswith("b.") for call in calls)


def test_more_refused_rows_than_allowed_end_the_slot(calls, b):
    with pytest.raises(PrepareError, match="refused 3 rows of slot 2, and max_refused is 2: It is odd"):
        write([piece([1, 3]), piece([5])], with_dead_letters(Choosy("a", calls), b, most=2))
    assert {"a.abort", "b.abort"} <= set(calls)


def test_marked_rows_are_refused_for_the_reason_of_their_mark(calls, a, b):
    given = with_dead_letters(a, b)
    given = replace(given, sinks=(replace(given.sinks[0], mark="why"), given.sinks[1]))
    rows = piece([2, 3, 4]).append_column("why", pa.array([None, "It must not be 3.", None]))
    accepted, refused = write([rows], given)
    assert (accepted.rows, refused.rows) == (2, 1)
    assert [row["reason"] for row in b.written[0].to_pylist()] == ["It must not be 3."]
    assert a.written[0]["number"].to_pylist() == [2, 4]
