"""How the examples handle invalid rows. test_examples covers everything else."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import enrichment
import etl
import windowed_sum
from spark.in_process import MARKS
from sparkonce.avro import SchemaRegistry, to_registry_avro
from sparkonce_lab.registry import RegistryServer

pytestmark = MARKS


def sums(records: DataFrame) -> DataFrame:
    return windowed_sum.plan(records, clock=windowed_sum.Clock.EVENT, window="10 seconds", lateness="0 seconds")


def orders(records: DataFrame) -> DataFrame:
    return enrichment.events(records, enrichment.ORDER)


@pytest.mark.parametrize("plan", [sums, orders])
@pytest.mark.parametrize("bad", [b'{"customer": "a", "amount": "much"}', b'{"customer": '])
def test_bad_json_ends_the_query_and_does_not_vanish(spark, plan, bad):
    with pytest.raises((PySparkException, Py4JJavaError), match="MALFORMED_RECORD_IN_PARSING"):
        plan(spark.createDataFrame([(bad,)], "value binary")).collect()


def test_a_record_stamped_in_the_future_is_of_the_batch_that_reads_it(spark):
    """It would advance the watermark, so that everybody else's rows would be dropped."""
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    message = F.struct(F.lit(1).alias("id"), F.lit("a").alias("name"), F.lit("1" * 18).alias("identifyNumber"))
    with RegistryServer() as server:
        registry = SchemaRegistry({"url": server.url})
        rows = spark.createDataFrame([(tomorrow,)], "timestamp timestamp")
        value = to_registry_avro(message, schema=etl.MESSAGE, topic=etl.SOURCE, registry=registry)
        where = [F.lit(etl.SOURCE).alias("topic"), F.lit(0).alias("partition"), F.lit(0).alias("offset")]
        records = rows.select(value.alias("value"), "timestamp", *where)
        plan = etl.plan(records, registry, clock=etl.Clock.RECORD, window="20 seconds", lateness="5 seconds")
        (window,) = [row["key"] for row in plan.collect()]
    assert datetime.fromisoformat(window) < datetime.now() + timedelta(hours=15)
