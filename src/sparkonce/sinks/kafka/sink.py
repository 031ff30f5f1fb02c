"""The Kafka sink: its settings, from which it creates the writers and the committer."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkonce.arguments import mapping, nonempty, whole_number
from sparkonce.guarantees import Guarantee
from sparkonce.needs import WorkerNeeds, addresses_of, files_of
from sparkonce.sink import Facts, Monitor, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks.kafka.settings import NEVER, NEVER_MS, id_prefix, lasting, producer_settings, size_settings

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_TIMEOUT_SETTING = "transaction.timeout.ms"
_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.crl.location")
_PORT = 9092


class KafkaSink(TwoPhaseCommitSink):
    """Writes rows to Kafka in transactions that the driver commits.

    The sink expects the same columns as Spark's own Kafka sink.

    Readers must set ``isolation.level=read_committed``, which is not Kafka's default.

    Example:
        ```python
        from sparkonce import ExactlyOnce, KafkaSink

        sink = KafkaSink({"bootstrap.servers": "broker:9092"}, "totals")
        ExactlyOnce(sink, "/data/checkpoints/totals").start(totals, output_mode="update")
        ```

    Args:
        settings: librdkafka's settings, for example ``{"bootstrap.servers": "broker:9092"}``. The workers use them
            unchanged, and the driver translates them. ``transaction.timeout.ms`` may also be ``"never"``.
        topic: The topic of all rows. If it is None, each row names its topic in the column ``topic``.
        guarantee: EXACTLY_ONCE writes transactions. The other guarantees write directly, and readers see rows
            immediately.
        prefix: The prefix of every transactional id, for prefixed ACLs. If it is None, the query's id determines it.
        name: A name that is unique within the query and stays the same after a restart.
        former_cluster_id: The id of the cluster that this query used to write to, if another one has replaced it.

    Raises:
        ConfigurationError: If a setting is unknown, contradicts the guarantee, or is managed by sparkonce. The message
            names it.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str | None = None,
        *,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        prefix: str | None = None,
        name: str = "kafka",
        former_cluster_id: str | None = None,
    ) -> None:
        super().__init__(name, guarantee)
        self.settings = mapping("settings", settings, example="{'bootstrap.servers': 'broker:9092'}")
        timeout_ms = self.settings.get(_TIMEOUT_SETTING)
        if timeout_ms == NEVER:
            self.settings[_TIMEOUT_SETTING] = NEVER_MS
        elif timeout_ms is not None and not str(timeout_ms).isdecimal():
            whole_number(_TIMEOUT_SETTING, timeout_ms, least=1)
        self.topic = topic if topic is None else nonempty("topic", topic, example="the name of one topic")
        self.prefix = prefix if prefix is None else id_prefix(prefix)
        self.former_cluster_id = former_cluster_id
        self._said = False
        producer_settings(self.settings, self.guarantee)

    def __repr__(self) -> str:
        servers = self.settings.get("bootstrap.servers", self.settings.get("metadata.broker.list"))
        return f"KafkaSink({servers!r}, topic={self.topic!r}, name={self.name!r})"

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """Selects ``key``, ``value``, ``partition``, ``headers``, ``timestamp``, and ``topic`` if the sink has none."""
        from sparkonce.sinks.kafka.rows import select_columns

        return select_columns(schema, self.topic)

    @property
    def tells_refused(self) -> bool:
        return True

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        """Checks the cluster: its limits, topic and permissions, and that it is still the recorded cluster."""
        from sparkonce.sinks.kafka.preflight import preflight

        timeout_ms = self.settings.get(_TIMEOUT_SETTING)
        facts = preflight(
            self.settings,
            topic=self.topic,
            guarantee=self.guarantee,
            prefix=self.prefix,
            timeout_ms=None if timeout_ms is None else int(timeout_ms),
            query=query,
            recorded=recorded,
            former_cluster_id=self.former_cluster_id,
        )
        if self.guarantee is Guarantee.EXACTLY_ONCE and not self._said:
            self._said = True
            topic, ended_ms = self.topic or "the topics", facts["transaction_timeout_ms"]
            log.info(
                "Readers of %s must set isolation.level=read_committed, which is not Kafka's default. Transactions of "
                "a killed run block them until the query starts again, or the transactions time out: %s=%s (%s).",
                *(topic, _TIMEOUT_SETTING, ended_ms, lasting(int(ended_ms))),
            )
        return facts

    @property
    def target_name(self) -> str | None:
        """The topic; None if rows name their topics."""
        return self.topic

    @property
    def kafka_settings(self) -> Mapping[str, Any]:
        return self.settings

    def partitions(self) -> int:
        """Returns the number of the topic's partitions; 0 if rows name their topics, or no broker answers."""
        from sparkonce.sinks.kafka.preflight import partitions_of

        return 0 if self.topic is None else partitions_of(self.settings, self.topic) or 0

    def conditions(self) -> Sequence[str]:
        """Returns a condition for transactions that never time out: an operator has to end them."""
        if self.guarantee is not Guarantee.EXACTLY_ONCE or self.settings.get(_TIMEOUT_SETTING) != NEVER_MS:
            return ()
        return (
            f"{_TIMEOUT_SETTING}={NEVER_MS}: from Kafka 4.1 on its transactions never time out, so a query that is "
            "killed is started again, however late, or its transactions are aborted by hand: read_committed readers "
            "of its partitions wait until then",
        )

    def transaction_timeout_s(self, facts: Facts) -> float | None:
        """Returns the time after which the broker aborts an open transaction."""
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return None
        timeout_ms = int(facts["transaction_timeout_ms"])
        return None if timeout_ms == NEVER_MS else timeout_ms / 1000

    def longest_lived(self, facts: Facts) -> Facts:
        """Raises the timeout to the brokers' limit, but at most an hour. See `TwoPhaseCommitSink.longest_lived`."""
        if "longest_timeout_ms" not in facts:
            return facts
        timeout_ms = max(int(facts["transaction_timeout_ms"]), int(facts["longest_timeout_ms"]))
        return {**facts, "transaction_timeout_ms": str(timeout_ms)}

    def worker_needs(self) -> WorkerNeeds:
        return WorkerNeeds(
            modules=("confluent_kafka",),
            files=files_of(self.settings, _FILES),
            addresses=addresses_of(str(self.settings["bootstrap.servers"]), _PORT),
        )

    def writer(self, context: WriterContext) -> SinkWriter:
        """Leases a producer right away, so that it is ready when the first rows arrive."""
        from sparkonce.sinks.kafka.pooled_producer import ProducerSpec
        from sparkonce.sinks.kafka.producer_pool import KEEP_AT_MOST, this_worker
        from sparkonce.sinks.kafka.rows import BY_ROW
        from sparkonce.sinks.kafka.writer import KafkaWriter, TopicLookup, WriterLimits, limits_of_process

        owner, transactional = context.owner, self.guarantee is Guarantee.EXACTLY_ONCE
        settings = producer_settings(self.settings, self.guarantee) | size_settings(self.settings, owner.facts)
        if transactional:
            settings[_TIMEOUT_SETTING] = int(owner.facts["transaction_timeout_ms"])
        spec = ProducerSpec(
            sink=self.name,
            query=owner.query,
            token=owner.token,
            generation=owner.generation,
            prefix=owner.facts["prefix"] if transactional else None,
            topic=self.topic,
            by_row=context.columns is None or not BY_ROW.isdisjoint(context.columns),
            settings=settings,
        )
        return KafkaWriter(
            this_worker().pool(spec, keep_at_most=KEEP_AT_MOST if transactional else 0),
            batch=context.batch,
            topic=self.topic,
            transactional=transactional,
            limits=WriterLimits.of(
                settings,
                self.transaction_timeout_s(owner.facts),
                int(owner.facts["max_message_bytes"]) if "max_message_bytes" in owner.facts else None,
            ),
            topic_limits=limits_of_process(settings),
            lookup=TopicLookup(settings, is_transactional=transactional),
        )

    def monitor(self, query: str, facts: Facts) -> Monitor | None:
        """Returns a monitor for foreign transactions that block the topic's readers; None if rows name topics."""
        from sparkonce.sinks.kafka.blocking import KafkaMonitor

        return None if self.topic is None or "prefix" not in facts else KafkaMonitor(self.settings, self.topic, query)

    def committer(self) -> SinkCommitter:
        """Returns the committer, which ends transactions from the driver."""
        from sparkonce.sinks.kafka.committer import KafkaCommitter

        return KafkaCommitter(self.settings, self.name, topic=self.topic)
