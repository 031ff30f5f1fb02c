"""RabbitMQ streams and queues as sources of a query, with the facts that sparkonce needs; see `sparkonce.source`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sparkonce.source import Finding, PreflightError, Source, SourceFacts, WorkerNeeds, holds, loses, must, note
from sparkonce_rabbitmq.queue.progress import NEXT, QUEUE
from sparkonce_rabbitmq.server import PACKAGES
from sparkonce_rabbitmq.stream.positions import rows_between

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkonce_rabbitmq.stream.data_source import StreamOptions

logger = logging.getLogger("sparkonce")


class RabbitMQStreams(Source):
    """Streams as read by `read_rabbitmq_stream`."""

    def judge(self, source: SourceFacts, downtime: str) -> Iterator[Finding]:
        yield holds("offsets are stored before a batch runs, and a replay reads the same messages again, or stops")
        if source.options is None:
            yield must("accept_lost is not set")
        elif accepted := json.loads(source.options.get("source", "{}")).get("accept_lost"):
            yield loses(
                f"accept_lost={accepted}: messages below these offsets that are gone are skipped",
                "accept_lost is removed once the query is past them",
            )
        yield must(f"the streams keep messages longer than {downtime} (max-age, max-length-bytes)")
        yield must(
            "a majority of each stream's replicas keep what they have confirmed: RabbitMQ does not fsync streams"
        )

    def starts_at_end(self, source: SourceFacts) -> bool:
        known = source.options or {}
        return "latest" in json.loads(known.get("source", "{}")).get("starting", {}).values()

    def describe_offset(self, offset: Any) -> str | None:
        return ", ".join(offset) if rows_between({}, offset) is not None else None

    def rows_between(self, before: Any, after: Any) -> int | None:
        return rows_between(before, after)

    def check(self, spark: SparkSession, source: SourceFacts, trigger: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Checks that the server responds, and that its streams can be read."""
        from sparkonce.session import IS_LIMITED_BY_SPARK
        from sparkonce_rabbitmq.server import RabbitMQ
        from sparkonce_rabbitmq.sinks.connection import OUTAGES
        from sparkonce_rabbitmq.stream.asking import StreamAsker

        one = _options(source)
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
                "The query reads at most %d messages of %s and then ends: before Spark 4.2, a Python source has one "
                "batch with the trigger %s. Next: Give max_rows_per_batch=None, or start it again until nothing is "
                "left.",
                *(one.most, ", ".join(one.streams), dict(trigger)),
            )

    def worker_needs(self, source: SourceFacts) -> WorkerNeeds:
        from sparkonce_rabbitmq.server import RabbitMQ

        server = RabbitMQ(**_options(source).server)
        addresses = (server.stream_address,)
        return WorkerNeeds(modules=("rstream",), files=server.files, addresses=addresses, packages=PACKAGES)


class RabbitMQQueues(Source):
    """Queues as read by `read_rabbitmq_queue`, which itself checks the queue. Tasks do not connect to a server."""

    def worker_needs(self, source: SourceFacts) -> WorkerNeeds:  # noqa: ARG002 - tasks read files
        return WorkerNeeds(packages=PACKAGES)

    def judge(self, source: SourceFacts, downtime: str) -> Iterator[Finding]:  # noqa: ARG002 - messages wait
        options = source.options or {}
        yield holds(
            "messages are kept in the checkpoint before a batch reads them, and a replay reads the same ones again"
        )
        if options.get("identify") == "digest":
            yield must(
                "no two messages are identical in everything that their publisher has set: one of them would be dropped"
            )
        else:
            yield must("each message has a unique id, and a publisher that repeats a message also repeats its id")
        if options.get("acknowledge") == "stored":
            yield must("the checkpoint is not lost: messages are gone from the queue before their batch is finished")
        yield must(
            "the queue is durable, its publishers wait for confirms, and no limit of length or age, no limit of "
            "deliveries (of a quorum queue), and no policy, drops messages that are not read yet"
        )
        yield must("a message is redelivered before as many others as remember= says (250,000)")
        yield note("redelivered messages may arrive in a different order")

    def describe_offset(self, offset: Any) -> str | None:
        """Returns an empty string, since an offset does not name the queue."""
        return "" if isinstance(offset, dict) and offset.keys() == {QUEUE, NEXT} else None


def _options(source: SourceFacts) -> StreamOptions:
    from sparkonce_rabbitmq.stream.data_source import OPTION, StreamOptions

    return StreamOptions.parse((source.options or {})[OPTION])
