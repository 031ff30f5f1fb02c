"""Measures a compaction, compared with a simple rewrite of the same small Parquet files by pyarrow's dataset.

    python3 dev.py run python benchmarks/compact.py [--files 200] [--rows 10000] [--rounds 5]

The rewrite reads all files and writes a single one, without fsync, checksums, counts or manifests. Both take turns on
the same local files, whose pages are in memory.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from sparkonce import FilesSink
from sparkonce.files import compact, read_manifests, whole_batches
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner, WriterContext

QUERY = "0123456789ab"
KEPT = 2


def fill(folder: Path, files: int, rows: int) -> None:
    """Writes batches of one file each."""
    sink = FilesSink(folder)
    owner = Owner(query=QUERY, token=Token(1, "00000000"), facts=sink.preflight(QUERY, None))
    committer = sink.committer()
    random = np.random.default_rng(1)
    for batch in range(files + KEPT):
        numbers = random.integers(0, 1 << 40, rows)
        table = pa.table({"number": numbers, "text": [f"{number:0112d}" for number in numbers]})
        writer = sink.writer(WriterContext(owner=owner, batch=batch, slot=0, copy="1.1.0"))
        writer.begin()
        for piece in table.to_batches():
            writer.write(piece)
        handle = Handle(sink=sink.name, slot=0, rows=rows, transaction=transaction_fields(writer.prepare()))
        writer.close()
        committer.commit([handle])
        committer.conclude(batch, [handle])


def ours(folder: Path) -> int:
    (done,) = compact(folder, keep_batches=KEPT, target_bytes=1 << 30)
    assert done.files_after == 1
    return sum(one.rows for one in read_manifests(folder) if one.compacted)


def pyarrow(folder: Path) -> int:
    paths = whole_batches(folder)[:-KEPT]
    ds.write_dataset(
        ds.dataset(paths), folder / "_copy", format="parquet", existing_data_behavior="overwrite_or_ignore"
    )
    return int(ds.dataset(folder / "_copy").count_rows())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--rows", type=int, default=10_000, help="rows per file, about 120 bytes each")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as made:
        fill(Path(made) / "first", given.files, given.rows)
        for number in range(given.rounds):
            contenders: list[Callable[[Path], int]] = [ours, pyarrow]
            for one in contenders if number % 2 else reversed(contenders):
                folder = Path(made) / "copy"
                shutil.copytree(Path(made) / "first", folder)
                begun = time.monotonic()
                assert one(folder) == given.files * given.rows
                took.setdefault(one.__name__, []).append(time.monotonic() - begun)
                shutil.rmtree(folder)
    for name, seconds in took.items():
        rate = given.files * given.rows / statistics.median(seconds)
        print(f"{name:8} {rate:12,.0f} rows/s, median of {given.rounds}; {min(seconds):.2f} to {max(seconds):.2f} s")
    ratio = statistics.median(took["pyarrow"]) / statistics.median(took["ours"])
    print(f"ours is {ratio:.2f} of pyarrow; most memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


if __name__ == "__main__":
    main()
