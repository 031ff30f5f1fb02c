"""End-to-end exactly-once for Spark Structured Streaming.

Names are imported when they are first used, so ``import sparkonce`` needs neither Spark nor a client library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparkonce import errors as errors

if TYPE_CHECKING:
    from sparkonce.avro.registry import SchemaRegistry as SchemaRegistry
    from sparkonce.avro.strategies import SubjectStrategy as SubjectStrategy
    from sparkonce.guarantees import Guarantee as Guarantee
    from sparkonce.sink import TwoPhaseCommitSink as TwoPhaseCommitSink
    from sparkonce.sinks.files.reading import read_manifests as read_manifests
    from sparkonce.sinks.files.reading import whole_batches as whole_batches
    from sparkonce.sinks.files.sink import FilesSink as FilesSink
    from sparkonce.sinks.kafka.sink import KafkaSink as KafkaSink
    from sparkonce.sinks.mysql.sink import MySQLSink as MySQLSink
    from sparkonce.sinks.postgres.sink import PostgresSink as PostgresSink
    from sparkonce.sinks.redis.sink import RedisSink as RedisSink
    from sparkonce.sinks.write_ahead.apply import SKIPPED as SKIPPED
    from sparkonce.sinks.write_ahead.apply import Applies as Applies
    from sparkonce.sinks.write_ahead.apply import ApplyToken as ApplyToken
    from sparkonce.sinks.write_ahead.apply import RefusedError as RefusedError
    from sparkonce.sinks.write_ahead.apply import RetryLaterError as RetryLaterError
    from sparkonce.sinks.write_ahead.sink import WriteAheadSink as WriteAheadSink
    from sparkonce.sources.group_offsets import GroupOffsets as GroupOffsets
    from sparkonce.sources.packages import spark_packages as spark_packages
    from sparkonce.spark.avro.columns import decode_registry_avro as decode_registry_avro
    from sparkonce.spark.avro.columns import from_avro_file as from_avro_file
    from sparkonce.spark.avro.columns import from_registry_avro as from_registry_avro
    from sparkonce.spark.avro.columns import to_avro_file as to_avro_file
    from sparkonce.spark.avro.columns import to_registry_avro as to_registry_avro
    from sparkonce.spark.ending import await_end as await_end
    from sparkonce.spark.exactly_once import ExactlyOnce as ExactlyOnce
    from sparkonce.spark.explain import explain as explain
    from sparkonce.spark.read_kafka import read_kafka as read_kafka
    from sparkonce.spark.tables.delta import DeltaSink as DeltaSink
    from sparkonce.spark.tables.iceberg import IcebergSink as IcebergSink

__version__ = "0.1.0"

_HOMES = {
    "SKIPPED": "sparkonce.sinks.write_ahead.apply",
    "Applies": "sparkonce.sinks.write_ahead.apply",
    "ApplyToken": "sparkonce.sinks.write_ahead.apply",
    "DeltaSink": "sparkonce.spark.tables.delta",
    "ExactlyOnce": "sparkonce.spark.exactly_once",
    "FilesSink": "sparkonce.sinks.files.sink",
    "GroupOffsets": "sparkonce.sources.group_offsets",
    "Guarantee": "sparkonce.guarantees",
    "IcebergSink": "sparkonce.spark.tables.iceberg",
    "KafkaSink": "sparkonce.sinks.kafka.sink",
    "PostgresSink": "sparkonce.sinks.postgres.sink",
    "RedisSink": "sparkonce.sinks.redis.sink",
    "RefusedError": "sparkonce.sinks.write_ahead.apply",
    "RetryLaterError": "sparkonce.sinks.write_ahead.apply",
    "MySQLSink": "sparkonce.sinks.mysql.sink",
    "SchemaRegistry": "sparkonce.avro.registry",
    "SubjectStrategy": "sparkonce.avro.strategies",
    "TwoPhaseCommitSink": "sparkonce.sink",
    "WriteAheadSink": "sparkonce.sinks.write_ahead.sink",
    "await_end": "sparkonce.spark.ending",
    "decode_registry_avro": "sparkonce.spark.avro.columns",
    "explain": "sparkonce.spark.explain",
    "from_avro_file": "sparkonce.spark.avro.columns",
    "from_registry_avro": "sparkonce.spark.avro.columns",
    "read_kafka": "sparkonce.spark.read_kafka",
    "read_manifests": "sparkonce.sinks.files.reading",
    "spark_packages": "sparkonce.sources.packages",
    "to_avro_file": "sparkonce.spark.avro.columns",
    "to_registry_avro": "sparkonce.spark.avro.columns",
    "whole_batches": "sparkonce.sinks.files.reading",
}

__all__ = [
    "SKIPPED",
    "Applies",
    "ApplyToken",
    "DeltaSink",
    "ExactlyOnce",
    "FilesSink",
    "GroupOffsets",
    "Guarantee",
    "IcebergSink",
    "KafkaSink",
    "MySQLSink",
    "PostgresSink",
    "RedisSink",
    "RefusedError",
    "RetryLaterError",
    "SchemaRegistry",
    "SubjectStrategy",
    "TwoPhaseCommitSink",
    "WriteAheadSink",
    "__version__",
    "await_end",
    "decode_registry_avro",
    "explain",
    "from_avro_file",
    "from_registry_avro",
    "read_kafka",
    "read_manifests",
    "spark_packages",
    "to_avro_file",
    "to_registry_avro",
    "whole_batches",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparkonce' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
