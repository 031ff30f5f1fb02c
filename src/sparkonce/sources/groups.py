"""Commits a query's offsets to a consumer group, so that lag monitoring tools see its progress."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkonce.arguments import number, texts
from sparkonce.errors import ConfigurationError
from sparkonce.protocol.handles import Handle
from sparkonce.sink import Facts
from sparkonce.sources.offsets import kafka_offsets

if TYPE_CHECKING:
    from sparkonce.sinks.kafka.transaction_client import TransactionClient

logger = logging.getLogger("sparkonce")

_LEAST_S = 0.1
"""The minimum time that must be left for another request."""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Commits each batch's end offsets to a consumer group after the batch is decided and finished.

    The offsets are for monitoring, like those of Flink's ``setCommitOffsetsOnCheckpoints``. The query itself resumes
    from its checkpoint. If a commit fails, a warning is logged, and the next batch commits newer offsets. There is one
    exception: if a broker does not answer after offsets were sent into a transaction, they may still arrive. The batch
    is then not decided, the query stops, and the restarted query runs the batch again.

    Example:
        ```python
        from sparkonce import ExactlyOnce, GroupOffsets

        offsets = GroupOffsets("totals", {"bootstrap.servers": "broker:9092"})
        ExactlyOnce(sink, "/data/checkpoints/totals", group_offsets=offsets).start(totals)
        ```

    Args:
        group: The group's id. The group must have no members.
        settings: The settings of the cluster that the query reads, under librdkafka's names, as for `KafkaSink`.
        topics: The topics whose offsets are committed; None for all that the query reads. Required if a query reads
            from two clusters.
        in_transaction_of: The name of a `KafkaSink` on the same cluster. A batch's offsets are then part of one of its
            slots' transactions, so that offsets and rows become visible together. The offsets of a batch without rows,
            and of a recovered batch, are committed afterwards.
        deadline_s: How long a batch waits for coordinators in total, in seconds.

    Raises:
        ConfigurationError: If a setting is wrong. The message names it.
    """

    group: str
    settings: Mapping[str, Any] = field(repr=False)
    topics: Sequence[str] | None = None
    in_transaction_of: str | None = None
    deadline_s: float = 5.0

    def __post_init__(self) -> None:
        from sparkonce.sinks.kafka.settings import admin_settings

        if not isinstance(self.group, str) or not self.group.strip():
            raise ConfigurationError(
                f"group={self.group!r} is not a group id.",
                next_step="Give a text, such as 'orders-job'.",
                setting="group",
            )
        if self.topics is not None:
            texts("topics", self.topics, example="a list of topics: ['orders']")
        number("deadline_s", self.deadline_s, above=0)
        admin_settings(self.settings)


class GroupReporter:
    """The driver's side of a `GroupOffsets`, for one run."""

    def __init__(self, offsets: GroupOffsets) -> None:
        self._offsets = offsets
        self._opened: TransactionClient | None = None
        self._joined = False
        self._left_s = offsets.deadline_s

    def check(self, facts: Mapping[str, Facts]) -> None:
        """Checks that offsets and rows can share a transaction."""
        sink = self._offsets.in_transaction_of
        if sink is None:
            return
        from sparkonce.sinks.kafka.outcomes import BrokerAnswer
        from sparkonce.sinks.kafka.transaction_client import metadata_request

        deadline_s = time.monotonic() + self._offsets.deadline_s
        metadata = self._client().insist(metadata_request(), deadline_s=deadline_s)
        if isinstance(metadata, BrokerAnswer):
            logger.warning("The cluster of the group %r cannot be queried: %s.", self._offsets.group, metadata.reason)
        elif (found := metadata.cluster_id) != facts[sink].get("cluster_id"):
            raise ConfigurationError(
                f"in_transaction_of={sink!r}: the group {self._offsets.group!r} is on cluster {found!r}, and the sink "
                f"on {facts[sink].get('cluster_id')!r}. A transaction cannot span two.",
                next_step="Leave in_transaction_of out: offsets are then committed after each batch.",
                setting="in_transaction_of",
            )

    def before_decision(self, handles: Sequence[Handle], sources: Sequence[str]) -> str:
        """Adds the offsets to one of the sink's prepared transactions, if ``in_transaction_of`` names a sink.

        Returns:
            The reason why the batch must not be decided; empty if there is none.
        """
        self._joined = False
        sink, offsets = self._offsets.in_transaction_of, kafka_offsets(sources, self._offsets.topics)
        chosen = next((handle for handle in handles if handle.sink == sink and handle.transaction), None)
        if chosen is None or not offsets:
            return ""
        from sparkonce.sinks.kafka.committer import transaction_of
        from sparkonce.sources.group_client import commit_offsets_in

        with self._time() as deadline_s:
            transaction = transaction_of(chosen)
            reply = commit_offsets_in(self._client(), transaction, self._offsets.group, offsets, deadline_s=deadline_s)
        if reply.may_arrive:
            return f"offsets of the group {self._offsets.group!r} may be in its transaction or not: {reply.reason}"
        self._joined = not reply.reason
        if reply.reason:
            self._warn("are not in the batch's transaction, and are committed after it", reply.reason)
        return ""

    def after_finish(self, sources: Sequence[str]) -> None:
        """Commits the offsets, unless a transaction has already committed them."""
        joined, self._joined = self._joined, False
        offsets = kafka_offsets(sources, self._offsets.topics)
        if not joined and offsets:
            from sparkonce.sources.group_client import commit_offsets

            with self._time() as deadline_s:
                reason = commit_offsets(self._client(), self._offsets.group, offsets, deadline_s=deadline_s)
            if reason:
                self._warn("could not be committed; the next batch's include them", reason)
        self._left_s = self._offsets.deadline_s

    @contextmanager
    def _time(self) -> Iterator[float]:
        """Yields the deadline for a request. Afterwards, deducts its duration from the time that the batch has left."""
        began = time.monotonic()
        yield began + self._left_s
        self._left_s = max(_LEAST_S, self._left_s - (time.monotonic() - began))

    def close(self) -> None:
        """Closes the connections."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _client(self) -> TransactionClient:
        if self._opened is None:
            from sparkonce.sinks.kafka.settings import admin_settings
            from sparkonce.sinks.kafka.transaction_client import TransactionClient

            self._opened = TransactionClient(admin_settings(self._offsets.settings), connections=1)
        return self._opened

    def _warn(self, what: str, reason: str) -> None:
        logger.warning("Offsets of the group %r %s: %s.", self._offsets.group, what, reason)
