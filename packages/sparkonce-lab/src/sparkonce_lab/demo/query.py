"""The verifier's query for the demo, which writes only to Kafka, with sparkonce or with Spark's own sink.

The query runs in a separate process (``python -m sparkonce_lab.demo.query``); see `sparkonce_lab.query`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sparkonce_lab.forwarding import HalfwaySink
from sparkonce_lab.query import Gate, QueryConfig, for_kafka, main, plan, run_batches, writing
from sparkonce_lab.schedule import HALFWAY
from sparkonce_lab.systems.kafka import KafkaSystem

if TYPE_CHECKING:
    import threading

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_NO_BATCH = -1


def start(spark: SparkSession, config: QueryConfig, gate: Gate, stopping: threading.Event) -> StreamingQuery:
    """Starts the query. ``plain_to`` is the topic that Spark's own sink writes to."""
    from pyspark.sql import functions as F

    rows = plan(spark, config)
    if config.plain_to:
        records = for_kafka(rows.withColumn("batch", F.lit(_NO_BATCH)))
        to = {"kafka.bootstrap.servers": config.source["bootstrap.servers"], "topic": config.plain_to}
        return writing(records, config).format("kafka").options(**to).start()
    HalfwaySink.is_held = lambda: gate.holds(HALFWAY)
    HalfwaySink.wait = lambda: gate.pass_by(HALFWAY, _NO_BATCH)
    sink = HalfwaySink(KafkaSystem.build(config.sinks[KafkaSystem.name]))  # type: ignore[abstract]
    return writing(rows, config).foreachBatch(run_batches({sink: for_kafka}, config, gate, stopping)).start()


if __name__ == "__main__":
    sys.exit(main(start))
