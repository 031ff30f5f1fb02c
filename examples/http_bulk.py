"""Sends orders to an HTTP API that accepts bulk requests and idempotency keys, with the write-ahead sink.

Without ``--url``, the example tests itself with its own API, which accepts all requests and cuts off every third reply.
docs/write-ahead.md explains the example.
"""

from __future__ import annotations

import json
import logging
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from pyspark.sql import SparkSession

from sparkonce import ExactlyOnce, WriteAheadSink
from sparkonce.write_ahead import Applies, ApplyToken, RefusedError, RetryLaterError

ORDER = "id bigint, customer string, amount bigint"
TIMEOUT_S = 10.0
TRY_AGAIN = {408, 409, 425, 429}
"""Statuses after which a request is retried. 409: the API is still working on an earlier request with this key."""


@dataclass(frozen=True)
class BulkApi:
    """Sends a slot's rows as one request. If the API has already seen the key, it repeats its first answer."""

    url: str

    def __call__(self, rows: pa.RecordBatchReader, token: ApplyToken) -> None:
        body = "".join(f"{json.dumps(row)}\n" for batch in rows for row in batch.to_pylist())
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": token.id}
        request = urllib.request.Request(self.url, body.encode(), headers, method="POST")
        try:
            urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
        except urllib.error.HTTPError as error:
            with error:
                wait = error.headers.get("Retry-After", "")
                if error.code >= 500 or error.code in TRY_AGAIN:
                    after_s = float(wait) if wait.isdigit() else 0.0
                    raise RetryLaterError(f"{error.code} {error.reason}", after_s=after_s) from error
                raise RefusedError(f"{error.code} {error.reason}") from error
        # After any other error, such as a lost connection, the sink sends the rows again with the same key.


def run(orders: Path, url: str, checkpoint: str) -> None:
    """Sends all orders that are currently available."""
    spark = SparkSession.builder.appName("http-bulk").config("spark.sql.shuffle.partitions", 3).getOrCreate()
    rows = spark.readStream.schema(ORDER).option("maxFilesPerTrigger", 2).json(str(orders))
    sink = WriteAheadSink(BulkApi(url), applies=Applies.IDEMPOTENT, name="bulk-api")
    ExactlyOnce(sink, checkpoint=checkpoint).start(rows, trigger={"availableNow": True}).awaitTermination()


def main(
    url: Annotated[str | None, typer.Option(help="Your API. If omitted, the example starts one.")] = None,
    orders: Annotated[Path, typer.Option(help="A folder of JSON lines.")] = Path("orders"),
    checkpoint: Annotated[str, typer.Option(help="A path or URL for positions, waiting rows, and decisions.")] = "",
) -> None:
    """Send orders to an HTTP API that supports idempotency keys."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if url is not None:
        return run(orders, url, checkpoint)

    from tryout.bulk import BulkServer, make_orders, show

    with tempfile.TemporaryDirectory() as folder, BulkServer() as api:
        sent = make_orders(Path(folder) / "orders")
        run(Path(folder) / "orders", api.url, f"{folder}/state")
        print(f"{api.requests} requests, of which {api.cut} were taken and their replies cut off")
        raise typer.Exit(show(sent, [row["id"] for row in api.rows]))


if __name__ == "__main__":
    typer.run(main)
