"""Checks the RabbitMQ streams that a query reads, and what its tasks need to read them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from sparkonce.analysis.facts import SourceFacts
from sparkonce.errors import PreflightError
from sparkonce.needs import WorkerNeeds
from sparkonce.sinks.rabbitmq.server import RabbitMQ
from sparkonce.spark.limits import IS_LIMITED_BY_SPARK
from sparkonce.spark.plans import source_facts
from sparkonce.spark.rabbitmq_stream import NAME, OPTION, StreamOptions
from sparkonce.spark.start.first_batch import analyzed

logger = logging.getLogger("sparkonce")


def stream_sources(plan: Any) -> tuple[StreamOptions, ...]:
    """Returns the settings of an analyzed plan's sources that are RabbitMQ streams."""
    return tuple(_options(source) for source in source_facts(plan) if source.format == NAME)


def ask_streams(sources: Sequence[StreamOptions], trigger: Mapping[str, Any]) -> None:
    """Checks that each server answers, and that its streams can be read.

    Args:
        sources: The query's sources.
        trigger: The query's trigger.

    Raises:
        PreflightError: naming the server, or the stream.
    """
    if not sources:
        return  # a query without them needs no client for them
    from sparkonce.sinks.rabbitmq.connection import OUTAGES
    from sparkonce.sources.rabbitmq.asking import StreamAsker

    for one in sources:
        server = RabbitMQ(**one.server)
        asker = StreamAsker(server, patience_s=server.timeout_s)
        try:
            for stream in asker.partitions(one.streams[0]) if one.super_stream else one.streams:
                asker.check(stream)
        except OUTAGES as error:
            host, port = server.stream_address
            raise PreflightError(
                f"RabbitMQ at {host}:{port}, whose streams this query reads, did not answer: {error}",
                next_step="Check host, stream_port and tls, and that the plugin rabbitmq_stream is enabled.",
                setting="host",
            ) from None
        finally:
            asker.close()
        ends_by_itself = trigger.get("availableNow") or trigger.get("once")
        if ends_by_itself and one.most is not None and not IS_LIMITED_BY_SPARK:
            logger.warning(
                "The query reads %d messages of %s at most, and ends: before Spark 4.2, a Python source has one batch "
                "with the trigger %s. Next: Give max_rows_per_batch=None, or start it again until nothing is left.",
                *(one.most, ", ".join(one.streams), dict(trigger)),
            )


def needs_of_streams(df: DataFrame) -> dict[str, WorkerNeeds]:
    """Returns what a query's tasks need to read streams, by a name for people."""
    found = {}
    for one in stream_sources(analyzed(df)):
        server = RabbitMQ(**one.server)
        found[", ".join(one.streams)] = WorkerNeeds(
            modules=("rstream",), files=server.files, addresses=(server.stream_address,)
        )
    return found


def _options(source: SourceFacts) -> StreamOptions:
    return StreamOptions.parse((source.options or {})[OPTION])
