"""End-to-end exactly-once for Spark Structured Streaming.

This module exports what a first job needs. Other names are in these modules:

- ``errors``: all errors
- ``avro``: Avro columns and the Schema Registry
- ``files``: whole batches of the files sink, for readers
- ``write_ahead``: a function as a sink
- ``sink``: everything that you need for your own sink; ``source``: the same for a source
- ``watch``: the figures of running queries
- ``testing``: tests for your own sink

Names are imported on first use, so ``import sparkonce`` needs neither Spark nor a client library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkonce import errors as errors
from sparkonce.lazy import lazy as _lazy
from sparkonce.version import __version__ as __version__

if TYPE_CHECKING:
    from sparkonce.guarantees import Guarantee as Guarantee
    from sparkonce.packages import spark_packages as spark_packages
    from sparkonce.sinks.files.sink import FilesSink as FilesSink
    from sparkonce.sinks.kafka.sink import KafkaSink as KafkaSink
    from sparkonce.sinks.redis.sink import RedisSink as RedisSink
    from sparkonce.sinks.sql.mysql.sink import MySQLSink as MySQLSink
    from sparkonce.sinks.sql.postgres.sink import PostgresSink as PostgresSink
    from sparkonce.sinks.tables.delta import DeltaSink as DeltaSink
    from sparkonce.sinks.tables.iceberg import IcebergSink as IcebergSink
    from sparkonce.sinks.write_ahead.sink import WriteAheadSink as WriteAheadSink
    from sparkonce.sources.groups import GroupOffsets as GroupOffsets
    from sparkonce.spark.exactly_once import ExactlyOnce as ExactlyOnce
    from sparkonce.spark.explain.explain import explain as explain
    from sparkonce.spark.formats.sources import register as register
    from sparkonce.spark.job.ending import await_end as await_end
    from sparkonce.spark.read_kafka import read_kafka as read_kafka
    from sparkonce.watch.prometheus import serve_metrics as serve_metrics

HOMES = {
    "DeltaSink": "sparkonce.sinks.tables.delta",
    "ExactlyOnce": "sparkonce.spark.exactly_once",
    "FilesSink": "sparkonce.sinks.files.sink",
    "GroupOffsets": "sparkonce.sources.groups",
    "Guarantee": "sparkonce.guarantees",
    "IcebergSink": "sparkonce.sinks.tables.iceberg",
    "KafkaSink": "sparkonce.sinks.kafka.sink",
    "MySQLSink": "sparkonce.sinks.sql.mysql.sink",
    "PostgresSink": "sparkonce.sinks.sql.postgres.sink",
    "RedisSink": "sparkonce.sinks.redis.sink",
    "WriteAheadSink": "sparkonce.sinks.write_ahead.sink",
    "await_end": "sparkonce.spark.job.ending",
    "explain": "sparkonce.spark.explain.explain",
    "read_kafka": "sparkonce.spark.read_kafka",
    "register": "sparkonce.spark.formats.sources",
    "serve_metrics": "sparkonce.watch.prometheus",
    "spark_packages": "sparkonce.packages",
}
"""The public names, with the module that defines each."""

__all__ = sorted(HOMES)
__getattr__, __dir__ = _lazy(__name__, HOMES)
