"""Pravega streams as sources of a query, with the facts about them that sparkonce needs; see `sparkonce.source`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sparkonce.source import Finding, PreflightError, Source, SourceFacts, holds, loses, must

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PravegaStreams(Source):
    """Streams as read by `read_pravega`."""

    def judge(self, source: SourceFacts, downtime: str) -> Iterator[Finding]:
        yield holds("stream cuts are stored before a batch runs, and a replay reads the same events again, or stops")
        if source.options is None:
            yield must("accept_lost is not set")
        elif accepted := source.options.get("accept_lost"):
            yield loses(
                f"accept_lost={accepted}: events before this cut that are gone are skipped",
                "accept_lost is removed once the query is past it",
            )
        yield must(f"the stream keeps events longer than {downtime} (its retention policy)")

    def starts_at_end(self, source: SourceFacts) -> bool:
        return (source.options or {}).get("starting") == "latest"

    def describe_offset(self, offset: Any) -> str | None:
        keys = set(offset) if isinstance(offset, dict) else set()
        return str(offset["stream"]) if {"stream", "cut"} <= keys <= {"stream", "cut", "made", "first"} else None

    def check(self, spark: SparkSession, source: SourceFacts, trigger: Mapping[str, Any]) -> None:  # noqa: ARG002
        from sparkonce_pravega.client import PravegaStream, reason
        from sparkonce_pravega.compiled import cluster_of

        cluster = cluster_of(source.options or {})
        scope, _, stream = source.where.partition("/")
        try:
            found = PravegaStream(spark, cluster, scope, stream).exists()
        except Exception as error:
            raise PreflightError(
                f"controller={cluster.controller!r} cannot be queried about the stream {source.where}, which this "
                f"query reads: {reason(error)}",
                next_step=(
                    "Check that Pravega runs, that the driver reaches it and trusts its certificate, and that the "
                    "user may read the stream."
                ),
                setting="controller",
            ) from error
        if not found:
            raise PreflightError(
                f"There is no stream {source.where}, which this query reads, at {cluster.controller}.",
                next_step="Create it, or correct its name.",
                setting="stream",
            )
