"""Refuses Spark Connect, whose parts of a query run in processes that cannot share one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from sparkonce.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NEXT = (
    "Start a classic session: without .remote(…), spark.remote and SPARK_REMOTE, where the driver runs, for example by "
    "spark-submit."
)


def check_classic(what: str, thing: object) -> None:
    """Refuses Spark Connect's classes. They are known by their module, which may be missing.

    Raises:
        ConfigurationError: if it is one of them.
    """
    if type(thing).__module__.startswith("pyspark.sql.connect"):
        raise ConfigurationError(
            f"{what} is of Spark Connect ({type(thing).__module__}), and sparkonce works only in the process of "
            "Spark's driver.",
            next_step=_NEXT,
            setting=what,
        )


def never_pickled(_: object) -> NoReturn:
    """Refuses to send an object to another process, as Spark Connect's ``foreachBatch`` would.

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError(
        "ExactlyOnce works only in the process of Spark's driver, and something sends it to another one, as Spark "
        "Connect's foreachBatch does.",
        next_step=_NEXT,
    )


def running_query(df: DataFrame) -> tuple[str, str]:
    """Returns the run's and the query's id, which Spark keeps as the thread's local properties in ``foreachBatch``."""
    check_classic("df", df)
    context = df.sparkSession.sparkContext
    run, query = context.getLocalProperty("spark.jobGroup.id"), context.getLocalProperty("sql.streaming.queryId")
    if not run or not query:
        raise ConfigurationError(
            "ExactlyOnce was called outside a streaming query.",
            next_step="Give it to df.writeStream.foreachBatch(…), on a classic Spark session (not Spark Connect).",
        )
    return run, query
