"""PySpark's daemon, with what workers need imported before it forks them: after each failed task comes a new one."""

from __future__ import annotations

import confluent_kafka  # noqa: F401
import fastavro  # noqa: F401
import pandas as pd  # noqa: F401
import pyarrow.parquet  # noqa: F401
from pyspark.daemon import manager

import sparkonce.executor  # noqa: F401

if __name__ == "__main__":
    manager()
