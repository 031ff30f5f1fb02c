"""Kafka: where a query's rows come from, and a system that they go to."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.lab.faults import Fault
from sparkonce.lab.systems.base import System
from sparkonce.lab.systems.injections import Injectable, Injection, of_connections, of_server
from sparkonce.lab.systems.letters import NAME, open_letters, read_letters
from sparkonce.rig.disk import SmallDisk, affordable
from sparkonce.rig.kafka.cluster import Cluster
from sparkonce.rig.proxy import FaultProxy
from sparkonce.rig.servers.process import HOST
from sparkonce.testing.kafka import coordinators, create_topic, list_transactions, scan
from sparkonce.testing.kafka_reader import KafkaReader
from sparkonce.testing.matchers import ADD_PARTITIONS, END_TXN, INIT_PRODUCER_ID, PRODUCE, kafka_request
from sparkonce.testing.systems.kafka import KafkaWitness

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sink import TwoPhaseCommitSink

TRANSACTION_TIMEOUT_S = 30.0
MEGABYTES = 6144

_THROUGH = "PROXY"
_REQUESTS = {
    "produce": kafka_request(PRODUCE),
    "init": kafka_request(INIT_PRODUCER_ID),
    "add-partitions": kafka_request(ADD_PARTITIONS),
    "end": kafka_request(END_TXN),
}
_CHECK_EVERY_MS = 500
_ANSWERS_WITHIN_S = 10.0
_READ_WITHIN_S = 600.0
_BACK_WITHIN_S = 180.0
_LOOK_S = 2.0
_POLL_S = 0.05


class KafkaSystem(Injectable, System):
    """A cluster of our own, or the user's.

    On the user's own no fault of the server or of connections can be injected: a Kafka client goes to the addresses
    that the brokers advertise, past any proxy. Topics there get names that nobody has, and are deleted in the end.

    A target record's value is ``kind,key,number,amount,rows,batch``, its key the key as text.

    Args:
        bootstrap: The user's ``bootstrap.servers``; None for a cluster of our own.
        nodes: Of our own, 1 or 3. With 3 a coordinator can be moved.
        partitions: Of the source and of the target.
        transaction_timeout_s: After how long without its commit the broker aborts a transaction; at least 1. None for
            the longest that the broker allows.
        settings: librdkafka's, of how to connect to the user's, for example ``{"security.protocol": "SASL_SSL"}``.
        megabytes: The size of our own disk, of all nodes together. It is in memory, and takes as much as is written.
        refuse_every: Of so many rows of a key it is made to refuse one, which goes to a sink of dead letters; 0 for
            none.

    Attributes:
        bootstrap: For the verifier's own feeder and readers, which no fault of connections strikes.
        client_bootstrap: For the query.
        settings: librdkafka's, of how the verifier's own clients connect, with `bootstrap`.
        nodes: As given.
        source: The topic that the query reads.
        target: The topic that it writes to.

    Raises:
        ConfigurationError: if there cannot be so many nodes.
    """

    name = "kafka"

    def __init__(
        self,
        bootstrap: str | None = None,
        nodes: int = 1,
        partitions: int = 4,
        transaction_timeout_s: float | None = TRANSACTION_TIMEOUT_S,
        settings: Mapping[str, Any] | None = None,
        megabytes: int = MEGABYTES,
        refuse_every: int = 0,
    ) -> None:
        if nodes not in (1, 3):
            raise ConfigurationError(f"--brokers {nodes}: there can be 1 or 3.", next_step="Choose one of them.")
        self._users = bootstrap
        self.nodes = nodes
        self.partitions = partitions
        self.transaction_timeout_s = transaction_timeout_s
        self._more = dict(settings or {})
        self._megabytes = megabytes
        self.refuse_every = refuse_every
        self.letters: Path | None = None
        self._disk: SmallDisk | None = None
        self._cluster: Cluster | None = None
        self._reader: KafkaReader | None = None
        self._newest = -1
        self._made = False
        self.injections = {}
        place = f"sparkonce-verify-{secrets.token_hex(5)}"
        self.source, self.target, self._prefix = f"{place}-source", f"{place}-target", place
        self.bootstrap = self.client_bootstrap = bootstrap or ""

    @property
    def settings(self) -> dict[str, Any]:
        """See `KafkaSystem`."""
        return {**self._more, "bootstrap.servers": self.bootstrap}

    def start(self, folder: Path) -> None:
        """See `System.start`."""
        if self.refuse_every:
            self.letters = folder.with_name(NAME)
        if self._users is None:
            self._start_own(folder)
        else:
            self._reach()
        from confluent_kafka import KafkaException

        try:
            for topic in (self.source, self.target):
                create_topic(self.settings, topic, self.partitions)
                self._made = True
        except (KafkaException, TimeoutError) as error:
            raise PreflightError(
                f"bootstrap.servers={self.bootstrap!r}: no topic {topic} can be made: {error}",
                next_step="Check the address, and that this user may create topics.",
            ) from error

    def _reach(self) -> None:
        """Checks that a broker answers. Asks once: a client that repeats the question would log each attempt."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        told: list[str] = []
        quiet = {"log_level": 0, "error_cb": lambda error: told.append(error.str())}
        admin = AdminClient({**self.settings, **quiet})
        try:
            admin.list_topics(timeout=_ANSWERS_WITHIN_S)
        except KafkaException as error:
            admin.poll(0)  # for what was told meanwhile, which says more
            why = next(iter(told), None) or error.args[0].str()
            raise PreflightError(
                f"--bootstrap {self.bootstrap}: no broker answers within {_ANSWERS_WITHIN_S:g} s: {why}",
                next_step="Check the address, and how to connect securely (--kafka-config).",
            ) from None

    def _start_own(self, folder: Path) -> None:
        self._disk = disk = SmallDisk(folder, affordable(self._megabytes))
        more = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": _CHECK_EVERY_MS}
        self._cluster = cluster = Cluster(
            nodes=self.nodes, listeners={_THROUGH: "PLAINTEXT"}, folder=folder, overrides=more
        )
        first, *others = cluster.brokers
        self.proxy = proxy = FaultProxy((HOST, first.ports[_THROUGH]), _REQUESTS)
        ports = [proxy.port, *(proxy.add((HOST, broker.ports[_THROUGH])) for broker in others)]
        for broker, port in zip(cluster.brokers, ports, strict=True):
            broker.overrides["advertised.listeners"] = f"PLAINTEXT://{broker.address},{_THROUGH}://{HOST}:{port}"
        proxy.start()
        cluster.start()
        self.bootstrap = cluster.bootstrap
        self.client_bootstrap = ",".join(f"{HOST}:{port}" for port in ports)
        self.requests = tuple(_REQUESTS)
        self.injections = {**of_server(_Whole(cluster)), **of_connections(proxy)}
        if disk.is_small:
            self.injections[Fault.TARGET_DISK_FULL] = Injection(lambda _: disk.fill(), self._after_full_disk)
        if self.nodes > 1:
            self.injections[Fault.COORDINATOR_MOVED] = Injection(self._kill_coordinator, self._revive)

    def stop(self) -> None:
        """See `System.stop`."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self.proxy is not None:
            self.proxy.close()
            self.proxy = None
        if self._cluster is not None:
            for broker in self._cluster.brokers:
                broker.kill()
            self._cluster.close()
            self._cluster = None
            if self._disk is not None:
                self._disk.close()
                self._disk = None
        elif self._made and not self.keep_place:
            self._delete_topics()
        self._made = False

    def _delete_topics(self) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({**self.settings, "log_level": 0})
        for topic, done in admin.delete_topics([self.source, self.target]).items():
            error = done.exception(_ANSWERS_WITHIN_S)
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            if error is not None:
                raise PreflightError(
                    f"The topic {topic} cannot be deleted: {error}", next_step="Delete it by hand."
                ) from error

    def sink_settings(self) -> Mapping[str, Any]:
        """See `System.sink_settings`."""
        timeout_s = self.transaction_timeout_s
        to = {
            **self._more,
            "bootstrap.servers": self.client_bootstrap,
            "message.timeout.ms": round(min(15.0, timeout_s or 15.0) * 1000),
            "socket.timeout.ms": 3_000,
        }
        if timeout_s is not None:
            to["transaction.timeout.ms"] = round(timeout_s * 1000)
        return {"settings": to, "topic": self.target, "prefix": self._prefix}

    @staticmethod
    def build(settings: Mapping[str, Any]) -> TwoPhaseCommitSink:
        """See `System.build`. The rows have the columns ``key`` and ``value``."""
        from sparkonce.sinks.kafka.sink import KafkaSink

        return KafkaSink(
            settings["settings"],
            topic=settings["topic"],
            prefix=settings["prefix"],
            name=KafkaSystem.name,
        )

    def read(self) -> pa.Table:
        """See `System.read`. Rows that are refused count as read where the dead letters are."""
        import pyarrow as pa

        from sparkonce.lab.systems.observed import of_texts

        chunks = [
            of_texts(
                [message.value() for message in chunk],
                [message.partition() for message in chunk],
                [message.offset() for message in chunk],
            )
            for chunk in scan(self.settings, self.target, timeout_s=_READ_WITHIN_S)
        ]
        refused = [] if self.letters is None else [read_letters(self.letters)]
        return pa.concat_tables([*chunks, *refused] or [of_texts([])])

    def newest(self) -> int:
        """See `System.newest`. Reads on from where it was: what a reader has been given stays given."""
        if self._reader is None:
            self._reader = KafkaReader(self.settings, self.target, self.partitions)
        give_up_at = time.monotonic() + _LOOK_S
        while time.monotonic() < give_up_at and (found := self._reader.read(_POLL_S)):
            batches = ((message.value() or b"").rpartition(b",")[2] for message in found)
            self._newest = max([self._newest, *(int(batch) for batch in batches if batch.isdigit())])
        return self._newest

    def left_open(self) -> Sequence[str]:
        """See `System.left_open`."""
        letters = [] if self.letters is None else open_letters(self.letters)
        return [*KafkaWitness(self.settings, f"{self._prefix}.", _ANSWERS_WITHIN_S).left_open(), *letters]

    def _kill_coordinator(self, within_s: float) -> None:
        """Kills the broker that coordinates a transaction of the query, preferably an open one."""
        cluster, give_up_at = self._cluster, time.monotonic() + within_s
        while cluster is not None:
            with suppress(TimeoutError):
                nodes = coordinators(self.bootstrap, timeout_s=max(0.1, give_up_at - time.monotonic()))
                own = {name: node for name, node in nodes.items() if name.startswith(f"{self._prefix}.")}
                open_ = list_transactions(self.bootstrap, states=["Ongoing"], timeout_s=_ANSWERS_WITHIN_S)
                if own:
                    node = next((own[name] for name in open_ if name in own), next(iter(own.values())))
                    cluster.brokers[node].kill()
                    return
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"no transactional id of the query is known to Kafka within {within_s:g} s")
            time.sleep(_POLL_S)

    def _after_full_disk(self) -> None:
        """Starts all brokers anew: one that could not write gives up its folder and ends, sooner or later."""
        if self._disk is not None and self._cluster is not None:
            self._disk.free()
            whole = _Whole(self._cluster)
            whole.kill()
            whole.start()

    def _revive(self) -> None:
        if self._cluster is not None:
            self._cluster.start(_BACK_WITHIN_S)


class _Whole:
    """All brokers of a cluster at once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def start(self) -> None:
        self._cluster.start(_BACK_WITHIN_S)

    def kill(self) -> None:
        for broker in self._cluster.brokers:
            broker.kill()

    def pause(self) -> None:
        for broker in self._cluster.brokers:
            broker.pause()

    def resume(self) -> None:
        for broker in self._cluster.brokers:
            broker.resume()
