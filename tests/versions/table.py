"""The versions of Spark, Python and Kafka that sparkonce is tried with, and the tests that are run with each."""

from __future__ import annotations

from dataclasses import dataclass

KILLS = "tests/spark/test_kills.py"
OF_EACH_SPARK = (
    "tests/versions/test_spark.py",
    "tests/versions/test_adaptive.py",
    "tests/versions/test_rabbitmq.py",
    "tests/versions/test_rolling_spark.py",
)
WITH_CONNECTOR = (
    KILLS,
    "tests/spark/test_lost.py",
    "tests/spark/test_shapes.py",
    "tests/spark/test_streams.py",
    "tests/spark/test_explain_engine.py",
    "tests/spark/test_object_checkpoints.py",
)
WITH_DELTA = ("tests/spark/test_tables_delta.py",)
WITH_ICEBERG = ("tests/spark/test_tables_iceberg.py",)
WITH_BOTH = ("tests/spark/test_tables_merge.py", "tests/spark/test_tables_merge_rows.py")
OF_EACH_KAFKA = (
    "tests/versions/test_broker.py",
    "tests/conformance/test_kafka.py",
    "tests/crashes/test_matrix.py",
    KILLS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A version of Spark, on a version of Python.

    Attributes:
        spark: The version of PySpark.
        python: The version of Python.
        connector: True if its Kafka connector can be had, so that queries read Kafka; the others read files.
        delta: True if Delta has a version for it.
        iceberg: The same for Iceberg.
    """

    spark: str
    python: str
    connector: bool = False
    delta: bool = False
    iceberg: bool = False

    def __str__(self) -> str:
        return f"spark-{self.spark}-python-{self.python}"

    @property
    def tests(self) -> tuple[str, ...]:
        """Returns the tests that are run with it."""
        return (
            *OF_EACH_SPARK,
            *(WITH_CONNECTOR if self.connector else ()),
            *(WITH_DELTA if self.delta else ()),
            *(WITH_ICEBERG if self.iceberg else ()),
            *(WITH_BOTH if self.delta and self.iceberg else ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """A version of Kafka.

    Attributes:
        kafka: The version of the brokers.
        transactions: The level of the feature ``transaction.version``; None where Kafka has none.
    """

    kafka: str
    transactions: int | None = None

    def __str__(self) -> str:
        return f"kafka-{self.kafka}" + ("" if self.transactions is None else f"-transactions-{self.transactions}")

    @property
    def options(self) -> tuple[str, ...]:
        """Returns the options of `versions.plugin`."""
        level = () if self.transactions is None else ("--transactions", str(self.transactions))
        return ("--kafka", self.kafka, *level)


ENGINES = (
    Engine(spark="4.0.0", python="3.10", connector=True, delta=True, iceberg=True),
    Engine(spark="4.0.5", python="3.11"),
    Engine(spark="4.1.1", python="3.12", connector=True, delta=True, iceberg=True),
    Engine(spark="4.1.4", python="3.10"),
    Engine(spark="4.2.0", python="3.13", connector=True),
    Engine(spark="4.2.1", python="3.12"),
    Engine(spark="4.3.0", python="3.13"),
)
BROKERS = (
    Brokers(kafka="3.0.0"),
    Brokers(kafka="3.3.2"),
    Brokers(kafka="3.9.1"),
    Brokers(kafka="4.0.0", transactions=1),
    Brokers(kafka="4.0.0", transactions=2),
    Brokers(kafka="4.4.0", transactions=1),
    Brokers(kafka="4.4.0", transactions=2),
)
