"""PySpark's daemon, which imports what workers need before it forks them: each failed task costs a new one."""

import confluent_kafka  # noqa: F401
import fastavro  # noqa: F401
import pandas as pd  # noqa: F401
import pyarrow.parquet  # noqa: F401
from pyspark.daemon import manager

import sparkonce.executor  # noqa: F401

if __name__ == "__main__":
    manager()
