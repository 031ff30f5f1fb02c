"""Two queries, Kafka to Pravega and Pravega to Kafka: their plans, and what must come of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from pravega_witness import SCOPE, PravegaWitness
from spark.harness import AnyJob, Job
from spark.pipeline import KAFKA
from spark.targets import Rows, Target
from sparkonce.testing.kafka import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.pipeline import Config

SOURCE = "sparkonce.tests.pravega"
"""A setting of the session that tells a plan where to read."""


def onward(spark: SparkSession, config: Config) -> DataFrame:
    """Gives the ids in a stream, under their last two digits, which are the key of an event, too."""
    from sparkonce import read_pravega

    where = json.loads(spark.conf.get(SOURCE))
    rows = read_pravega(
        spark, where["controller"], scope=SCOPE, stream=where["stream"], max_bytes_per_batch=where["most"]
    )
    events = rows.select(F.split(F.col("value").cast("string"), " ")[1].alias("id"))
    return events.select(F.substring("id", -2, 2).alias("key"), F.col("id").alias("value"))


class PravegaEvents(Target):
    """The events of a stream: the number of the batch that has written each, and its id."""

    kind = "PravegaSink"

    def __init__(self, witness: PravegaWitness, stream: str, folder: Path) -> None:
        self.witness, self.stream, self._waiting = witness, stream, folder / "rows"
        witness.create(stream)
        self.sink = {"controller": witness.controller, "scope": SCOPE, "stream": stream, "folder": str(self._waiting)}

    def visible(self) -> Rows:
        told = [event.split() for event in self.witness.events(self.stream)]
        return Counter((row, int(batch)) for batch, row in told)

    def open(self, query: str) -> list[str]:
        return [path.name for state in ("open", "prepared") for path in self._waiting.glob(f"*/{state}/*{query}*")]

    def offsets(self) -> dict[int, list[int]]:
        """The offset of each event, by its segment's id."""
        return self.witness.offsets(self.stream)


class IntoPravega(Job):
    """Kafka to Pravega: each id is an event."""

    def __init__(self, target: PravegaEvents, bootstrap: str, folder: Path, **more: Any) -> None:
        super().__init__(
            bootstrap, folder, again=False, plan="spark.plans:stateless", kafka=None, targets=[target], **more
        )


class OutOfPravega(AnyJob):
    """Pravega to Kafka: each id is a record's value.

    Args:
        source: The stream.
        bootstrap: The broker.
        folder: A new one.
        most: The bytes at which a batch ends.
        more: Of `AnyJob`.
    """

    def __init__(self, source: PravegaEvents, bootstrap: str, folder: Path, *, most: int, **more: Any) -> None:
        self._source = source
        where = {"controller": source.witness.controller, "stream": source.stream, "most": most}
        plan = "spark.pravega_job:onward"
        super().__init__(bootstrap, folder, sources=0, plan=plan, sql={SOURCE: json.dumps(where)}, **more)

    def row(self, record: Record) -> tuple[str, str]:
        """Its id."""
        return super().row(record)[1], ""

    def by_batch(self) -> Mapping[int, int]:
        """Counts the records of each batch."""
        counts: Counter[int] = Counter()
        for (_, batch), count in self.visible()[KAFKA].items():
            counts[batch] += count
        return counts

    def planned(self) -> Mapping[int, int]:
        """Counts the events between the cuts that Spark has stored for each batch."""
        offsets, counts = self._source.offsets(), {}
        known: Mapping[str, int] = {}
        for batch in range(self.decided() + 1):
            end = json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])
            start = end.get("first", known)
            known = end["cut"]
            counts[batch] = sum(
                start[segment] <= offset < upto for segment, upto in known.items() for offset in offsets[int(segment)]
            )
        return {batch: count for batch, count in counts.items() if count}

    def order_of_keys(self) -> dict[bytes, list[int]]:
        """The ids under each key, in the order in which a reader finds them."""
        found: dict[bytes, list[int]] = {}
        for record in sorted(self.records(), key=lambda one: (one.partition, one.offset)):
            found.setdefault(record.key or b"", []).append(int(self.row(record)[0]))
        return found
