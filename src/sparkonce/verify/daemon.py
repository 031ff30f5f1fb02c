"""PySpark's own daemon, which forks the Python workers: where the driver's clock is a `FakeClock`, theirs is too."""

from __future__ import annotations

from sparkonce.verify.clock import become_python

if __name__ == "__main__":
    become_python()

    from pyspark.daemon import manager

    manager()
