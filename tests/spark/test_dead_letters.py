"""Rows that a system rejects go to another sink of the unit: accepted and rejected rows are exactly the input."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from shared_servers import needs_postgres
from spark.in_process import MARKS, CrashError, Stream, crash_at
from sparkonce import FilesSink, PostgresSink
from sparkonce.errors import PrepareError
from sparkonce.files import whole_batches
from sparkonce.protocol.state import Phase

pytestmark = MARKS

IDS = [f"{number}" for number in range(400)]


def plan(rows: DataFrame) -> DataFrame:
    """Makes some values too large for the topic and the column."""
    large = F.repeat(F.lit("x"), 3000)
    return rows.withColumn("value", F.when(F.col("key").cast("int") % 50 == 0, large).otherwise(F.col("value")))


def in_files(folder: Path) -> list[dict[str, Any]]:
    """Returns the dead letters of whole batches."""
    return [row for path in whole_batches(folder) for row in ds.dataset(path).to_table().to_pylist()]


@pytest.mark.slow
@needs_postgres
def test_accepted_and_refused_rows_are_the_input_whatever_crashes(spark, kafka, tmp_path, postgres):
    def without(refused: list[str]) -> list[str]:
        """Returns the ids that are not rejected, in the order of their numbers."""
        return [one for one in IDS if one not in refused]

    def refused_by(sink: str, dead_letters: list[dict[str, Any]]) -> list[str]:
        """Returns the keys of the rows that a sink rejected, as often as they are there."""
        return sorted((json.loads(one["row"])["key"] for one in dead_letters if one["sink"] == sink), key=int)

    crashes = [Phase.VALIDATING, Phase.DECIDING, Phase.FINISHING, Phase.CONCLUDING]
    unliked = [one for one in IDS if int(one) % 70 == 3]
    large = [one for one in IDS if int(one) % 50 == 0]
    postgres.ask("CREATE TABLE liked (key text, value varchar(100), CHECK (key::int % 70 <> 3))")
    stream = Stream(spark, kafka, tmp_path, IDS, partitions=2, target_config={"max.message.bytes": "2000"})
    dead_letters = tmp_path / "refused"

    def run(**more: Any) -> Any:
        table = PostgresSink(postgres.server.conninfo(), table="liked", commit="two_phase")
        dead = FilesSink(dead_letters, name="refused")
        return stream.run(plan, rows_per_batch=100, sinks=lambda to: [to, table], dead_letters=dead, **more)

    for batch, phase in enumerate(crashes):
        with pytest.raises(CrashError):
            run(listener=crash_at(phase, batch))
    run()
    table = sorted((key for (key,) in postgres.ask("SELECT key FROM liked")), key=int)
    found = in_files(dead_letters)
    assert sorted(stream.keys(), key=int) == without(large)
    assert refused_by("kafka", found) == large
    assert table == without([*large, *unliked])
    assert Counter(refused_by("postgres", found)) == Counter([*large, *unliked])
    reasons = {one["reason"] for one in found}
    assert any("max.message.bytes is 2000" in one for one in reasons), reasons
    assert any("23514" in one for one in reasons), reasons
    assert any("22001" in one for one in reasons), reasons
    assert {one["batch"] for one in found} == {0, 1, 2, 3}
    assert not stream.transactions("Ongoing")


def test_too_many_refused_rows_stop_the_query(spark, kafka, tmp_path):
    stream = Stream(spark, kafka, tmp_path, IDS, partitions=2, target_config={"max.message.bytes": "2000"})
    dead = FilesSink(tmp_path / "refused", name="dead")
    with pytest.raises(PrepareError, match="max_refused is 3"):
        stream.run(plan, dead_letters=dead, max_refused=3)
    assert stream.keys() == []
    assert in_files(tmp_path / "refused") == []
