import json
from datetime import datetime, timedelta, timezone

import pytest

from sparkonce.errors import ConfigurationError
from sparkonce.packages import ICEBERG_MODULE, KAFKA_MODULE, missing_module, spark_packages
from sparkonce.sources.kafka import starting_options
from sparkonce.sources.offsets import kafka_offsets

NOON = datetime(2026, 1, 31, 12, 0, 0, 5000, tzinfo=timezone.utc)


@pytest.mark.parametrize("word", ["earliest", "latest"])
def test_words(word):
    assert starting_options(word) == {"startingOffsets": word}


def test_offsets_and_times_of_partitions():
    noon_ms = 1769860800005
    elsewhere = NOON.astimezone(timezone(timedelta(hours=-7)))
    assert starting_options(NOON) == starting_options(elsewhere) == {"startingTimestamp": str(noon_ms)}

    (option,) = starting_options({"a": {0: 17, 1: "earliest"}, "b": {0: "latest"}}).items()
    assert option[0] == "startingOffsets"
    assert json.loads(option[1]) == {"a": {"0": 17, "1": -2}, "b": {"0": -1}}

    (option,) = starting_options({"a": {0: NOON}}).items()
    assert (option[0], json.loads(option[1])) == ("startingOffsetsByTimestamp", {"a": {"0": noon_ms}})


@pytest.mark.parametrize(
    ("starting", "named"),
    [
        ("Earliest", "'Earliest'"),
        (NOON.replace(tzinfo=None), "no time zone"),
        ({}, "{}"),
        ({"a": {}}, "not a position"),
        ({"a": {0: -7}}, "-7"),
        ({"a": {0: True}}, "True"),
        ({"a": {0: "newest"}}, "'newest'"),
        ({"a": {0: NOON, 1: 5}}, "both times and offsets"),
        (17, "17"),
    ],
)
def test_what_is_no_position_is_named(starting, named):
    with pytest.raises(ConfigurationError, match=named.replace("{", r"\{")):
        starting_options(starting)


KAFKA = '{"orders":{"0":7,"1":9}}'


@pytest.mark.parametrize(
    "other",
    [
        *("-", "17", '{"logOffset":3}'),
        '{"sourceVersion":1,"reservoirId":"a","reservoirVersion":1,"index":-1,"isStartingVersion":true}',
        *('{"version":1,"snapshot_id":5,"position":0,"scan_all_files":false}', '{"0":{"value":5,"runTimeMs":7}}'),
        *('{"orders":{"0":"7"}}', "[1]"),
    ],
    ids=["none yet", "rate or socket", "files", "Delta", "Iceberg", "rate per partition", "texts", "a list"],
)
def test_only_kafkas_offsets_are_taken(other):
    assert kafka_offsets([other, KAFKA]) == {"orders": {0: 7, 1: 9}}


def test_of_two_sources_that_read_one_partition_the_one_behind_counts():
    assert kafka_offsets([KAFKA, '{"orders":{"0":8,"1":2}}']) == {"orders": {0: 7, 1: 2}}

    assert kafka_offsets([KAFKA, '{"clicks":{"0":1}}'], ["clicks"]) == {"clicks": {0: 1}}


def test_packages_have_the_version_of_spark():
    kafka, avro = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0", "org.apache.spark:spark-avro_2.13:4.0.0"
    assert spark_packages("4.0.0") == spark_packages("4.0.0-vendor-1") == f"{kafka},{avro}"
    assert spark_packages("4.0.0", avro=False) == kafka

    delta, iceberg = ("io.delta:delta-spark_2.13:4.0.0", "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0")
    assert spark_packages("4.0.3", avro=False, delta=True, iceberg=True).split(",")[1:] == [delta, iceberg]
    assert spark_packages("4.9.1", avro=False, pravega=True).split(",")[1:] == ["io.pravega:pravega-client:0.13.0"]
    with pytest.raises(ConfigurationError, match=r"Which iceberg-spark-runtime fits Spark 4\.9\.1 is not known"):
        spark_packages("4.9.1", iceberg=True)
    assert "iceberg-spark-runtime-4.9_2.13:<the version for Spark 4.9>" in str(missing_module(ICEBERG_MODULE, "4.9.1"))


def test_a_missing_module_is_told_with_its_coordinate():
    told = str(missing_module("spark-avro", "4.0.1"))
    for line in (
        'python job.py: SparkSession.builder.config("spark.jars.packages", "org.apache.spark:spark-avro_2.13:4.0.1")',
        "spark-submit, pyspark: spark-submit --packages org.apache.spark:spark-avro_2.13:4.0.1 job.py",
        "notebook: restart the kernel",
        "PYSPARK_SUBMIT_ARGS='--packages org.apache.spark:spark-avro_2.13:4.0.1 pyspark-shell'",
        '%%configure -f {"conf": {"spark.jars.packages": "org.apache.spark:spark-avro_2.13:4.0.1"}}',
        "Spark Connect: start-connect-server.sh --packages org.apache.spark:spark-avro_2.13:4.0.1",
        "spark-defaults.conf: spark.jars.packages org.apache.spark:spark-avro_2.13:4.0.1",
    ):
        assert f" {line}" in told
    assert told.startswith("This Spark session (version 4.0.1) does not have spark-avro")


KAFKA_4 = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"


@pytest.mark.parametrize(
    ("submitted", "why"), [(True, "spark-submit starts it before the script"), (False, "by a session before this one")]
)
def test_packages_that_came_too_late_are_said_first(submitted, why):
    told = missing_module(KAFKA_MODULE, "4.0.0", asked=f"a:b:1,{KAFKA_4}", submitted=submitted).message
    assert told.startswith(f"spark.jars.packages=a:b:1,{KAFKA_4} is set and had no effect")
    assert why in told
