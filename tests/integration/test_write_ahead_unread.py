"""Functions that return before they have read their rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from integration.write_ahead_scene import commit, files, numbers, open_writer, prepare, sink_of, target_of
from small_job import SmallJob
from sparkonce import Guarantee, WriteAheadSink
from sparkonce.errors import PrepareError, UnknownOutcomeError
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.state import Phase
from sparkonce.sinks.write_ahead import rows as rows_module
from sparkonce.write_ahead import SKIPPED, Applies, ApplyToken

NEITHER = Applies.NEITHER
Function = Callable[[pa.RecordBatchReader, ApplyToken], object]


def read_nothing(rows: pa.RecordBatchReader, token: ApplyToken) -> object:
    return None


def read_the_first_part(rows: pa.RecordBatchReader, token: ApplyToken) -> object:
    return rows.read_next_batch().num_rows


def skip(rows: pa.RecordBatchReader, token: ApplyToken) -> object:
    return SKIPPED


def read_the_first_part_and_skip(rows: pa.RecordBatchReader, token: ApplyToken) -> object:
    read_the_first_part(rows, token)
    return SKIPPED


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "READ_ROWS", 2)


@pytest.mark.parametrize("per", ["slot", "batch"])
@pytest.mark.parametrize(("function", "read"), [(read_nothing, 0), (read_the_first_part, 2)])
def test_rows_that_were_not_read_stop_the_query_and_are_kept(
    tmp_path: Path, function: Function, read: int, per: str
) -> None:
    sink, target = sink_of(tmp_path, NEITHER, function, per=per), target_of(tmp_path, NEITHER)
    handles = [prepare(sink, slot=slot) for slot in range(2)]
    committer = sink.committer()
    answers = committer.commit(handles)
    assert {answer.outcome for answer in answers} == {Outcome.UNKNOWN}
    assert f"had read {read} of the {3 if per == 'slot' else 6} rows" in answers[0].reason
    with pytest.raises(UnknownOutcomeError, match=r"return sparkonce\.write_ahead\.SKIPPED") as stopped:
        committer.commit(handles)
    assert "start the query again: the rows are kept" in stopped.value.next_step
    assert commit(sink, *handles) == [Outcome.UNKNOWN] * 2, "as often as it is called so"
    assert files(sink)["done"] == 0
    assert commit(sink_of(tmp_path, NEITHER, target, per=per), *handles) == [Outcome.COMMITTED] * 2
    assert sorted(target.visible()) == numbers(0, range(2))


@pytest.mark.parametrize("function", [skip, read_the_first_part_and_skip])
def test_a_function_may_say_that_it_skips_rows(tmp_path: Path, function: Function) -> None:
    sink = sink_of(tmp_path, NEITHER, function)
    assert commit(sink, prepare(sink)) == [Outcome.COMMITTED]


READS: dict[str, Callable[[pa.RecordBatchReader, Path], object]] = {
    "read_all": lambda rows, _: rows.read_all(),
    "read_pandas": lambda rows, _: rows.read_pandas(),
    "for": lambda rows, _: [batch.num_rows for batch in rows],
    "C++": lambda rows, folder: ds.write_dataset(rows, folder / uuid4().hex, format="parquet"),
}


@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize("per", ["slot", "batch"])
def test_whatever_reads_them_all_has_read_them(tmp_path: Path, way: str, per: str) -> None:
    sink = sink_of(tmp_path, NEITHER, lambda rows, _: READS[way](rows, tmp_path), per=per)
    assert commit(sink, prepare(sink), prepare(sink, slot=1)) == [Outcome.COMMITTED] * 2


def test_in_a_worker_unread_rows_fail_the_slot(tmp_path: Path) -> None:
    def sink(function: Function) -> WriteAheadSink:
        return sink_of(tmp_path, NEITHER, function, guarantee=Guarantee.AT_LEAST_ONCE)

    with pytest.raises(PrepareError, match="had read 0 of the 3 rows"):
        open_writer(sink(read_nothing)).prepare()
    assert open_writer(sink(skip)).prepare() == {}


def test_a_query_stops_and_goes_on_with_a_function_that_reads(tmp_path: Path) -> None:
    def rows(batch: int, slot: int) -> pa.RecordBatch:
        return pa.record_batch({"number": numbers(batch, [slot])})

    target = target_of(tmp_path, NEITHER)
    function: list[Function] = [read_nothing]
    job = SmallJob(tmp_path, lambda: [WriteAheadSink(function[0], applies=NEITHER, parallel=1)], rows)
    phases: list[Phase] = []
    for _ in range(2):
        with pytest.raises(UnknownOutcomeError, match="had read 0 of the 3 rows"):
            job.run(0, listener=lambda phase, _: phases.append(phase))
    assert phases.count(Phase.DECIDING) == 1, "a start again is no way around it"
    function[0] = target
    job.run(0, 1)
    assert sorted(target.visible()) == [*numbers(0, range(2)), *numbers(1, range(2))]
