from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkonce.sinks.files.formats import choose

ROWS = 200_000
UNIQUE = np.arange(ROWS)


def encoded(rows: pa.Table, **options: Any) -> set[str]:
    stream = io.BytesIO()
    encoder = choose("parquet", None, options).open(stream)
    encoder.write(rows)
    encoder.close()
    file = pq.ParquetFile(stream)
    assert file.read() == rows
    group = file.metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {one.path_in_schema for one in columns if one.has_dictionary_page}


def table(**columns: Any) -> pa.Table:
    batches = pa.table(columns).to_batches(max_chunksize=8_192)
    return pa.Table.from_batches(batches)


def test_unique_values_have_none_and_others_have_one():
    rows = table(
        id=UNIQUE,
        amount=np.random.default_rng(7).random(ROWS),
        text=[f"number {one}" for one in UNIQUE],
        town=[f"town {one}" for one in UNIQUE % 100],
        nothing=pa.nulls(ROWS, pa.string()),
    )
    assert encoded(rows) == {"town", "nothing"}
    assert encoded(rows.select(["id", "text"])) == set()
    assert encoded(rows, use_dictionary=False) == set()


@pytest.mark.parametrize("different", [1_000, 20_000, 50_000])
def test_values_that_come_round_in_turn_have_one(different):
    """The first twenty thousand rows of such a file are unique."""
    assert encoded(table(sensor=[f"sensor {one}" for one in UNIQUE % different])) == {"sensor"}


@pytest.mark.parametrize("different", [1_000, 20_000, 50_000])
def test_values_that_come_at_random_have_one(different):
    assert encoded(table(sensor=np.random.default_rng(7).integers(0, different, ROWS))) == {"sensor"}


def test_few_rows_and_nested_columns_have_what_pyarrow_makes():
    assert encoded(table(id=UNIQUE).slice(0, 1_000)) == {"id"}
    nested = pa.StructArray.from_arrays([pa.array(UNIQUE % 7)], ["inner"])
    assert "outer.inner" in encoded(table(outer=nested))
