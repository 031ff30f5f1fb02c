"""Checks the executors by one small job: their sparkonce, client libraries and files, and their reach of the sinks."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.shipped import NEXT_STEPS, Needs, report
from sparkonce.spark.show.failures import message_and_next, short_error, task_has_failed
from sparkonce.spark.worker import needs_of

logger = logging.getLogger("sparkonce")

ANSWER_WITHIN_S = 60.0
"""The time for the job. An executor that starts later is checked by its first task."""
_MOST_HOSTS = 3
_PY_FILES = "spark.submit.pyFiles"
_WHEEL = ".whl"
_IGNORED = "PySpark puts only .zip, .egg and .jar files on the path of Python workers, and ignores a wheel"

_proven: set[tuple[str, str]] = set()
"""The local applications, and the needs, for which the job was run: their one executor does not change."""


def check_executors(spark: SparkSession, sinks: Sequence[TwoPhaseCommitSink]) -> None:
    """Checks that the executors are as the driver and the sinks' writers need them.

    Args:
        spark: The session.
        sinks: The query's sinks.

    Raises:
        ConfigurationError: if a wheel is given as one of Python's files.
        PreflightError: naming each host that lacks something, and how to ship it.
    """
    context = spark.sparkContext
    is_local = context.master.startswith("local") and not context.master.startswith("local-cluster")
    _refuse_wheels(context)
    needs = needs_of(sinks)
    if not is_local:  # the sinks' own preflight has reached them from this machine
        needs["addresses"] = [(sink.name, there) for sink in sinks if (there := sink.worker_needs().addresses)]
    proof = (context.applicationId, repr(needs))
    if proof in _proven:
        return
    found = _ask(context, needs)
    if is_local and found:
        _proven.add(proof)
    _judge(found, _wheels(context.listFiles))


def _ask(context: SparkContext, needs: Needs) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns each host with its lacks, or nothing if no executor has answered in time."""
    # Spark offers each executor one task before it offers a second one.
    executors = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1
    tag, is_late = f"sparkonce-executors-{uuid.uuid4()}", threading.Event()

    def give_up() -> None:
        is_late.set()
        context.cancelJobsWithTag(tag)

    timer = threading.Timer(ANSWER_WITHIN_S, give_up)
    timer.daemon = True
    tasks = max(executors, 1)
    try:
        # Not in a job group of its own: a query that is stopped cancels the jobs of its group.
        context.addJobTag(tag)
        timer.start()
        return list(context.parallelize(range(tasks), tasks).map(lambda _: report(needs)).collect())
    except Py4JError as error:
        if is_late.is_set():
            logger.warning(
                "No executor has run a task within %.0f s: the executors are not checked before the first batch. Next: "
                "Look for free cores in the cluster manager.",
                ANSWER_WITHIN_S,
            )
        elif isinstance(error, Py4JJavaError) and task_has_failed(error):
            message, next_step = message_and_next(error)
            raise PreflightError(f"The executors cannot be used. {message}", next_step=next_step) from None
        elif isinstance(error, Py4JJavaError):
            raise short_error(error) from None
        else:
            logger.warning("This session runs no job of an RDD, so the executors are not checked: %s", error)
    finally:
        timer.cancel()
        context.removeJobTag(tag)
    return []


def _judge(found: Iterable[tuple[str, list[tuple[str, str]]]], wheels: Sequence[str]) -> None:
    hosts: dict[str, dict[str, str]] = defaultdict(dict)
    for host, lacks in found:
        for kind, text in lacks:
            hosts[host][text] = kind
    if not hosts:
        return
    named = [f"host {host!r}: {'; '.join(lacks)}" for host, lacks in sorted(hosts.items())[:_MOST_HOSTS]]
    if more := len(hosts) - len(named):
        named.append(f"{more} more hosts")
    ignored = f" {wheels[0]} was shipped, but {_IGNORED}." if wheels else ""
    kinds = {kind for lacks in hosts.values() for kind in lacks.values()}
    raise PreflightError(
        f"Executors are not as the driver needs them. On {'; on '.join(named)}.{ignored}",
        next_step=" ".join(step for kind, step in NEXT_STEPS.items() if kind in kinds),
        hosts={host: list(lacks) for host, lacks in hosts.items()},
    )


def _refuse_wheels(context: SparkContext) -> None:
    given = context.getConf().get(_PY_FILES, "") or ""
    # YARN puts every such file on the workers' path.
    if (wheels := _wheels(given.split(","))) and context.master != "yarn":
        raise ConfigurationError(
            f"{_PY_FILES} (--py-files) names {', '.join(wheels)}: {_IGNORED}.",
            next_step="Install the wheel in the executors' environment, or ship that by --archives. See "
            "docs/deploying.md.",
            setting=_PY_FILES,
        )


def _wheels(files: Iterable[str]) -> list[str]:
    return [file for file in files if file.lower().endswith(_WHEEL)]
