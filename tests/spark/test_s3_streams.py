"""A real query that writes to a bucket: driver, JVM and workers are killed (SIGKILL), and its rows counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from integration.s3_scene import bucket, s3
from s3_bucket import Bucket
from spark.desk import Desk, Hold
from spark.faults import CONCLUDING, HALFWAY, PREPARED
from spark.pipeline import ENDED, PHASE, Config
from spark.processes import Run
from spark.startup import jvm_flags
from sparkonce import read_manifests, whole_batches
from sparkonce.protocol.state import Phase
from tryout.bulk import make_orders

__all__ = ["bucket", "s3"]

pytestmark = pytest.mark.spark

SLOTS = 2
ROWS_PER_BATCH = 100
DECIDING = Phase.DECIDING.name


AT: Mapping[str, Callable[[int, int], bool]] = {
    PREPARED: lambda uploads, rows: uploads >= 1 and rows == 0,
    DECIDING: lambda uploads, rows: uploads == SLOTS and rows == 0,
    HALFWAY: lambda uploads, rows: 0 < uploads < SLOTS and 0 < rows < ROWS_PER_BATCH,
    CONCLUDING: lambda uploads, rows: uploads == 0 and rows == 2 * ROWS_PER_BATCH,
}
"""Where it is killed, and whether so many open uploads, and rows in the bucket, are what is there then."""


@pytest.mark.parametrize(
    "points", [(DECIDING, HALFWAY), pytest.param(tuple(AT), marks=pytest.mark.slow)], ids=["short", "all"]
)
def test_a_driver_that_is_killed_loses_and_doubles_nothing(
    bucket: Bucket, tmp_path: Path, points: Sequence[str]
) -> None:
    sent = make_orders(tmp_path / "orders", files=6)
    path, options = f"s3://{bucket.name}/out", bucket.server.settings()
    with Desk() as desk:
        config = Config(
            bootstrap="127.0.0.1:1",
            sources=(),
            target="none",
            checkpoint=str(tmp_path / "checkpoint"),
            temporary=str(tmp_path),
            jars=(),
            jvm_flags=jvm_flags(),
            desk=desk.address,
            plan="spark.s3_unit:orders",
            unit="spark.s3_unit:sinks",
            slots=SLOTS,
            points=(PREPARED, HALFWAY, CONCLUDING),
            beside={"orders": str(tmp_path / "orders"), "path": path, "options": options},
        )
        for point in points:
            run = Run([config], tmp_path / "query.log")
            try:
                hold_at(desk, point).wait(run.check)
                found = len(bucket.uploads()), len(bucket.numbers("id"))
            finally:
                run.kill()
            assert AT[point](*found), f"at {point!r}: {found}"
        Run([config], tmp_path / "query.log").finish()
        last = desk.last(ENDED)
        assert last is not None
        assert last.told["failed"] == ""
    assert sorted(bucket.numbers("id")) == sent
    assert bucket.uploads() == []
    manifests = read_manifests(path, store_options=options)
    assert {one.batch: one.rows for one in manifests} == dict.fromkeys(range(3), ROWS_PER_BATCH)
    published = {f"s3://{bucket.name}/{key}" for key in bucket.published()}
    assert set(whole_batches(path, store_options=options)) == published


def hold_at(desk: Desk, point: str) -> Hold:
    """In the first batch that is not committed yet, which a run that takes up an older one comes to later."""
    if point == CONCLUDING:
        return desk.hold(point, batch=1)
    return desk.hold(PHASE, phase=point) if point == DECIDING else desk.hold(point)
