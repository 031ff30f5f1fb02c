"""Kafka: the source of a query's rows, and a system to which they are written."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce_lab.faults import Fault
from sparkonce_lab.kafka import KafkaReader, Transaction, coordinators, create_topic, list_transactions, scan
from sparkonce_lab.rig.disk import SmallDisk, affordable
from sparkonce_lab.rig.kafka.cluster import Cluster
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.proxy import ADD_PARTITIONS, END_TXN, INIT_PRODUCER_ID, PRODUCE, FaultProxy, kafka_request
from sparkonce_lab.systems.base import VerifiedSystem
from sparkonce_lab.systems.files import NAME, open_dead_letters, read_dead_letters
from sparkonce_lab.systems.injections import Injection, Together, of_connections, of_server

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.protocol.handles import Handle
    from sparkonce.sink import TwoPhaseCommitSink
    from sparkonce_lab.rig.proxy import Request

OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""The states of a transaction that its coordinator has not finished."""
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
_NEWEST_S = 2.0
_POLL_S = 0.05


class KafkaSystem(VerifiedSystem):
    """A cluster that is started here, or the user's.

    On the user's cluster, no fault of the servers or of connections can be injected: a Kafka client connects to the
    addresses that the brokers advertise, bypassing any proxy. Topics on that cluster get unique names, and are deleted
    at the end.

    The value of a target record is ``kind,key,number,amount,rows,batch``. Its key is the row's key as text.

    Args:
        bootstrap: The user's ``bootstrap.servers``; None to start a cluster.
        nodes: The number of nodes to start, 1 or 3. With 3, a coordinator can be moved.
        partitions: The number of partitions of the source and of the target.
        settings: librdkafka's connection settings for the user's cluster, for example ``{"security.protocol":
            "SASL_SSL"}``.
        megabytes: The size of the disk for all nodes together. It is in memory, and uses only as much of it as is
            written.
        refuse_every: Of this many rows per key, Kafka is made to reject one, which goes to a sink of dead letters; 0
            for none.
        cluster: A running cluster, which is not stopped here.
        requests: The requests that the proxy recognizes. Defaults to those that the verifier strikes.
        alone: True if nobody else uses the cluster. Then `left_open` covers all of it.

    Attributes:
        bootstrap: The brokers' address for the verifier's own feeder and readers, which connection faults do not
            affect.
        client_bootstrap: The brokers' address for the query.
        settings: librdkafka's connection settings for the verifier's own clients, including `bootstrap`.
        nodes: The number of nodes.
        transaction_timeout_s: The time after which the broker aborts uncommitted transactions, in seconds; None for the
            longest time that the broker allows.
        source: The topic that the query reads, created by `place`.
        target: The topic that it writes to, created by `place`.

    Raises:
        ConfigurationError: If this number of nodes is not supported.
    """

    name = "kafka"
    REQUESTS: ClassVar[Mapping[str, Mapping[str, Request]]] = {
        "two_phase": {
            "prepare": kafka_request(PRODUCE),
            "commit": kafka_request(END_TXN),
            "abort": kafka_request(INIT_PRODUCER_ID),
        }
    }

    def __init__(
        self,
        bootstrap: str | None = None,
        nodes: int = 1,
        partitions: int = 4,
        settings: Mapping[str, Any] | None = None,
        megabytes: int = MEGABYTES,
        refuse_every: int = 0,
        *,
        cluster: Cluster | None = None,
        requests: Mapping[str, Request] = _REQUESTS,
        alone: bool = False,
    ) -> None:
        if nodes not in (1, 3):
            raise ConfigurationError(f"--brokers {nodes}: there can be 1 or 3.", next_step="Choose one of them.")
        self._users = bootstrap
        self.nodes = nodes
        self.partitions = partitions
        self.transaction_timeout_s: float | None = TRANSACTION_TIMEOUT_S
        self._more = dict(settings or {})
        self._megabytes = megabytes
        self.refuse_every = refuse_every
        self.dead_letters: Path | None = None
        self._disk: SmallDisk | None = None
        self.cluster = self._borrowed = cluster
        self._struck = requests
        self._alone = alone
        self._reader: KafkaReader | None = None
        self._newest = -1
        self._made: list[str] = []
        self._prefix = f"sparkonce-verify-{secrets.token_hex(5)}"
        self.source = self.target = ""
        self.bootstrap = self.client_bootstrap = bootstrap or ""

    @property
    def settings(self) -> dict[str, Any]:
        return {**self._more, "bootstrap.servers": self.bootstrap}

    def start(self, folder: Path) -> None:
        if self.refuse_every:
            self.dead_letters = folder.with_name(NAME)
        if self._borrowed is not None:
            self.bootstrap = self.client_bootstrap = self._borrowed.bootstrap
            self.injections = of_server(_whole(self._borrowed))
        elif self._users is None:
            self._start_own(folder)
        else:
            self._reach()

    def place(self, *columns: str) -> None:  # noqa: ARG002 - a topic has none
        """Also creates the source topic, unless the cluster was started elsewhere."""
        from confluent_kafka import KafkaException

        self._prefix = prefix = f"sparkonce-verify-{secrets.token_hex(5)}"
        self.source, self.target, self._newest = f"{prefix}-source", f"{prefix}-target", -1
        self._close_reader()
        try:
            for topic in (self.source, self.target) if self._borrowed is None else (self.target,):
                create_topic(self.settings, topic, self.partitions)
                self._made.append(topic)
        except (KafkaException, TimeoutError) as error:
            raise PreflightError(
                f"bootstrap.servers={self.bootstrap!r}: no topic {topic} can be made: {error}",
                next_step="Check the address, and that this user may create topics.",
            ) from error

    def _reach(self) -> None:
        """Checks that a broker responds. Sends one request, because a client that retries would log each attempt."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        told: list[str] = []
        quiet = {"log_level": 0, "error_cb": lambda error: told.append(error.str())}
        admin = AdminClient({**self.settings, **quiet})
        try:
            admin.list_topics(timeout=_ANSWERS_WITHIN_S)
        except KafkaException as error:
            admin.poll(0)  # This call raises any error that was reported since, which says more than the timeout.
            why = next(iter(told), None) or error.args[0].str()
            raise PreflightError(
                f"--bootstrap {self.bootstrap}: no broker answers within {_ANSWERS_WITHIN_S:g} s: {why}",
                next_step="Check the address, and how to connect securely (--kafka-config).",
            ) from None

    def _start_own(self, folder: Path) -> None:
        self._disk = disk = SmallDisk(folder, affordable(self._megabytes))
        more = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": _CHECK_EVERY_MS}
        self.cluster = cluster = Cluster(
            nodes=self.nodes, listeners={_THROUGH: "PLAINTEXT"}, folder=folder, overrides=more
        )
        first, *others = cluster.brokers
        self.proxy = proxy = FaultProxy((HOST, first.ports[_THROUGH]), self._struck)
        ports = [proxy.port, *(proxy.add((HOST, broker.ports[_THROUGH])) for broker in others)]
        for broker, port in zip(cluster.brokers, ports, strict=True):
            broker.overrides["advertised.listeners"] = f"PLAINTEXT://{broker.address},{_THROUGH}://{HOST}:{port}"
        proxy.start()
        cluster.start()
        self.bootstrap = cluster.bootstrap
        self.client_bootstrap = ",".join(f"{HOST}:{port}" for port in ports)
        self.requests = self._struck
        self.injections = {**of_server(_whole(cluster)), **of_connections(proxy)}
        if disk.is_small:
            self.injections[Fault.TARGET_DISK_FULL] = Injection(lambda _: disk.fill(), self._after_full_disk)
        if self.nodes > 1:
            revive = partial(cluster.start, _BACK_WITHIN_S)
            self.injections[Fault.COORDINATOR_MOVED] = Injection(self._kill_coordinator, revive)

    def stop(self) -> None:
        self._close_reader()
        if self.proxy is not None:
            self.proxy.close()
            self.proxy = None
        if self._borrowed is not None:
            return
        if self.cluster is not None:
            for broker in self.cluster.brokers:
                broker.kill()
            self.cluster.close()
            self.cluster = None
            if self._disk is not None:
                self._disk.close()
                self._disk = None
        elif self._made and not self.keep_place:
            self._delete_topics()
        self._made = []

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _delete_topics(self) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({**self.settings, "log_level": 0})
        for topic, done in admin.delete_topics(self._made).items():
            error = done.exception(_ANSWERS_WITHIN_S)
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            if error is not None:
                raise PreflightError(
                    f"The topic {topic} cannot be deleted: {error}", next_step="Delete it manually."
                ) from error

    def arguments(self, **options: Any) -> dict[str, Any]:
        to = {**self._more, "bootstrap.servers": self.client_bootstrap}
        return {"settings": to, "topic": self.target, "prefix": self._prefix, **options}

    def sink_settings(self) -> Mapping[str, Any]:
        timeout_s = self.transaction_timeout_s
        more: dict[str, Any] = {
            "message.timeout.ms": round(min(15.0, timeout_s or 15.0) * 1000),
            "socket.timeout.ms": 3_000,
        }
        if timeout_s is not None:
            more["transaction.timeout.ms"] = round(timeout_s * 1000)
        arguments = self.arguments()
        return {**arguments, "settings": {**arguments["settings"], **more}}

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> TwoPhaseCommitSink:
        """Creates a sink for rows with the columns ``key`` and ``value``."""
        from sparkonce.sinks.kafka.sink import KafkaSink

        return KafkaSink(**arguments)

    def expire(self, handle: Handle) -> bool:
        """Initializes the transactional id again, which aborts the open transaction as the broker's timeout would."""
        from confluent_kafka import Producer

        Producer({**self.settings, "transactional.id": str(handle["transactional_id"])}).init_transactions(60.0)
        return True

    def restart(self) -> bool:
        if self.cluster is None:
            return False
        _whole(self.cluster).kill()
        self.cluster.start(_BACK_WITHIN_S)
        return True

    def visible(self, *columns: str) -> list[Any]:
        """Returns the values as numbers, or these properties of each record."""
        found = [message for chunk in scan(self.settings, self.target) for message in chunk]
        if columns:
            return [tuple(getattr(message, name)() for name in columns) for message in found]
        return [int(message.value() or b"-1") for message in found]

    def read(self) -> pa.Table:
        """Reads the rows. Rejected rows count as read if they are among the dead letters."""
        import pyarrow as pa

        from sparkonce_lab.systems.observed import of_texts

        chunks = [
            of_texts(
                [message.value() for message in chunk],
                [message.partition() for message in chunk],
                [message.offset() for message in chunk],
            )
            for chunk in scan(self.settings, self.target, timeout_s=_READ_WITHIN_S)
        ]
        refused = [] if self.dead_letters is None else [read_dead_letters(self.dead_letters)]
        return pa.concat_tables([*chunks, *refused] or [of_texts([])])

    def newest(self) -> int:
        """Reads from where the last call ended, because committed records remain."""
        if self._reader is None:
            self._reader = KafkaReader(self.settings, self.target, self.partitions)
        give_up_at = time.monotonic() + _NEWEST_S
        while time.monotonic() < give_up_at and (found := self._reader.read(_POLL_S)):
            batches = ((message.value() or b"").rpartition(b",")[2] for message in found)
            self._newest = max([self._newest, *(int(batch) for batch in batches if batch.isdigit())])
        return self._newest

    def left_open(self) -> Sequence[str]:
        dead_letters = [] if self.dead_letters is None else open_dead_letters(self.dead_letters)
        return [*(f"{one.transactional_id} {one.state}" for one in self.transactions(*OPEN)), *dead_letters]

    def transactions(self, *states: str) -> list[Transaction]:
        """Lists the transactions in these states; all transactions if there are no arguments."""
        prefix = "" if self._alone else f"{self._prefix}."
        return [*list_transactions(self.settings, states=states, prefix=prefix, timeout_s=_ANSWERS_WITHIN_S).values()]

    def state(self) -> object:
        """Includes the known producers, because initializing an id creates a newer producer."""
        known = self.transactions()
        producers = sorted((one.transactional_id, one.producer_id, one.producer_epoch) for one in known)
        return super().state(), producers

    def _kill_coordinator(self, within_s: float) -> None:
        """Kills the broker that coordinates one of the query's transactions, preferably an open one."""
        cluster, give_up_at = self.cluster, time.monotonic() + within_s
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
        """Restarts all brokers. A broker that could not write takes its folder offline, and exits sooner or later."""
        if self._disk is not None and self.cluster is not None:
            self._disk.free()
            self.restart()


def _whole(cluster: Cluster) -> Together:
    return Together(cluster.brokers, partial(cluster.start, _BACK_WITHIN_S))
