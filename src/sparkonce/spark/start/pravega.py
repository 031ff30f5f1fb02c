"""Checks the Pravega streams that a query reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from sparkonce.analysis.facts import SourceFacts
from sparkonce.errors import PreflightError
from sparkonce.spark.plans import source_facts
from sparkonce.spark.pravega.client import PravegaStream, reason
from sparkonce.spark.pravega.compiled import cluster_of


def pravega_sources(plan: Any) -> tuple[SourceFacts, ...]:
    """Returns an analyzed plan's sources that are Pravega streams."""
    return tuple(source for source in source_facts(plan) if source.format == "pravega")


def ask_pravega(spark: SparkSession, sources: Sequence[SourceFacts]) -> None:
    """Checks that each controller answers, and knows the stream.

    Raises:
        PreflightError: naming the controller, or the stream.
    """
    for source in sources:
        cluster = cluster_of(source.options or {})
        scope, _, stream = source.where.partition("/")
        try:
            found = PravegaStream(spark, cluster, scope, stream).exists()
        except Exception as error:
            raise PreflightError(
                f"controller={cluster.controller!r} cannot be asked for the stream {source.where}, which this "
                f"query reads: {reason(error)}",
                next_step="See that Pravega runs, that the driver reaches it and trusts its certificate, and that the "
                "user may read the stream.",
                setting="controller",
            ) from error
        if not found:
            raise PreflightError(
                f"There is no stream {source.where}, which this query reads, at {cluster.controller}.",
                next_step="Create it, or correct its name.",
                setting="stream",
            )
