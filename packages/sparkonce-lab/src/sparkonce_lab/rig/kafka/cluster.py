"""Kafka brokers as child processes on loopback ports: one for trying things out, several for tests of failures.

::

    with Cluster(nodes=3, overrides={"transaction.max.timeout.ms": 60_000}) as cluster:
        cluster.brokers[0].kill()
        cluster.brokers[0].start()      # same ports, same data: clients reconnect
"""

from __future__ import annotations

import atexit
import base64
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce_lab.rig.java import find_java
from sparkonce_lab.rig.kafka.broker import CONTROLLER, PLAINTEXT, Broker
from sparkonce_lab.rig.kafka.jars import KAFKA_VERSION, archive_flags, kafka_archive, kafka_jars
from sparkonce_lab.rig.process import HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""JVM flags that start a broker in half the time, but make it slower under load."""

_FORMAT_TIMEOUT_S = 120.0
_ARCHIVE_TIMEOUT_S = 60.0

_LOGGING = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    # This logger prints every setting.
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
)


class Cluster:
    """A Kafka cluster. As a context manager, it starts and closes the cluster.

    Args:
        nodes: The number of nodes. Internal and new topics have min(3, nodes) replicas, of which all but one must be in
            sync.
        version: Kafka's version.
        folder: The folder for settings, logs and data, which is not deleted. Defaults to a temporary one that `close`
            deletes.
        port: The first node's port; each further node has the next port. 0 for any free ports.
        listeners: Additional listeners by name, with their security protocol, for example ``{"SASL":
            "SASL_PLAINTEXT"}``. Their JAAS settings are overrides. With an authorizer, make ``User:ANONYMOUS`` a super
            user, since nodes connect to each other as that user.
        overrides: Broker properties of every node, which take precedence over all others.
        heap: The JVM's maximum heap, as in ``-Xmx``.
        jvm_flags: Additional JVM flags. Leave out `FAST_START` if speed under load matters.
        features: Levels of Kafka's features, set when the data is formatted, as in ``{"transaction.version": 1}``.
            Defaults to the levels of the version. Requires Kafka 3.9 or newer.
        dies_with_parent: True if the brokers end when this process does, even by SIGKILL.

    Attributes:
        brokers: The nodes, by id.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        version: str = KAFKA_VERSION,
        folder: Path | None = None,
        port: int = 0,
        listeners: Mapping[str, str] | None = None,
        overrides: Mapping[str, str | int] | None = None,
        heap: str = "512m",
        jvm_flags: Sequence[str] = FAST_START,
        features: Mapping[str, int] | None = None,
        dies_with_parent: bool = True,
    ) -> None:
        self._temporary = folder is None
        self.folder = folder.absolute() if folder else Path(tempfile.mkdtemp(prefix="sparkonce-kafka-"))
        self.version = version
        self.listeners = dict(listeners or {})
        self.overrides = dict(overrides or {})
        self.dies_with_parent = dies_with_parent
        self._jvm = (f"-Xmx{heap}", *jvm_flags, *_LOGGING)
        self._features = dict(features or {})
        self._classes: tuple[str, ...] = ()
        # Kafka's format is 16 bytes in URL-safe base64. The id must not begin with a dash.
        self._new_cluster_id = base64.urlsafe_b64encode(b"s" + secrets.token_bytes(15)).rstrip(b"=").decode()
        names = [PLAINTEXT, CONTROLLER, *self.listeners]
        free = iter(free_ports(nodes * len(names)))
        self.brokers = [Broker(self, node_id, dict(zip(names, free, strict=False))) for node_id in range(nodes)]
        if port:
            for offset, broker in enumerate(self.brokers):
                broker.ports[PLAINTEXT] = port + offset

    @property
    def bootstrap(self) -> str:
        """``bootstrap.servers`` of the plain listeners."""
        return self.bootstrap_of(PLAINTEXT)

    @property
    def ports(self) -> Mapping[int, Mapping[str, int]]:
        return {broker.node_id: broker.ports for broker in self.brokers}

    def bootstrap_of(self, listener: str) -> str:
        """Returns ``bootstrap.servers`` of another listener, by its name."""
        return ",".join(f"{HOST}:{broker.ports[listener]}" for broker in self.brokers)

    def start(self, timeout_s: float = 60.0) -> Self:
        """Starts every node, and waits until each node serves clients and knows the others.

        The first start downloads Kafka and archives its classes, which does not count toward the timeout.

        Raises:
            ConfigurationError: If Java is missing, a port is taken, or a property is malformed.
            PreflightError: If Kafka cannot be downloaded or does not start. The message contains the end of the log.
        """
        try:
            self.launch()
            self.wait_ready(timeout_s)
        except BaseException:
            self.close()
            raise
        return self

    def launch(self) -> None:
        """Formats new data folders and starts every node, without waiting. Downloads Kafka the first time."""
        if self.dies_with_parent:
            atexit.register(self.close)
        self._check_data()
        self._classes = archive_flags(kafka_archive(self.version), self._record_classes)
        self._format()
        for broker in self.brokers:
            broker.launch()

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Waits until every node serves clients, as `start` does after `launch`."""
        give_up_at = time.monotonic() + timeout_s
        for broker in self.brokers:
            broker.wait_ready({each.node_id for each in self.brokers}, give_up_at)

    def close(self) -> None:
        """Ends every node (normally, if the data is kept), and deletes a temporary folder. May be called repeatedly."""
        atexit.unregister(self.close)
        if self._temporary:
            for broker in self.brokers:
                broker.kill()
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        # Stop the brokers in parallel: one after another, the last ones would lose their quorum and could not shut down
        # normally.
        for broker in self.brokers:
            broker.ask_to_stop()
        for broker in self.brokers:
            broker.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def java_command(self, main: str, *arguments: str) -> list[str]:
        classpath = ":".join(str(jar) for jar in kafka_jars(self.version))
        return [find_java(), *self._jvm, *self._classes, "-cp", classpath, main, *arguments]

    def _record_classes(self, flag: str) -> None:
        """Runs a node that archives the classes that it loads; see `archive_flags`."""
        with tempfile.TemporaryDirectory(prefix="sparkonce-kafka-") as folder:
            cluster = Cluster(version=self.version, folder=Path(folder))
            cluster._format()
            cluster._classes = (flag,)
            (node,) = cluster.brokers
            try:
                node.start()
            finally:
                in_order = node.stop(_ARCHIVE_TIMEOUT_S)
            if not in_order:
                raise PreflightError(
                    "A node that was to keep its classes did not end normally.", next_step="Start again."
                )

    @property
    def cluster_id(self) -> str:
        """The cluster's id: the one in the data or, before the data exists, the one that it will get."""
        for broker in self.brokers:
            if broker.is_formatted:
                found = re.search(r"^cluster\.id=(.+)$", broker.meta_file.read_text(), re.MULTILINE)
                if found:
                    return found[1].strip()
        return self._new_cluster_id

    def _check_data(self) -> None:
        standing = len(list(self.folder.glob("node-*/data/meta.properties")))
        if standing not in (0, len(self.brokers)):
            raise ConfigurationError(
                f"The data in {self.folder} belongs to {standing} node(s), but {len(self.brokers)} are requested.",
                next_step="Start as many nodes as before, take another folder, or delete the data.",
            )

    def _format(self) -> None:
        """Creates the data folders of nodes without one."""
        new = [broker for broker in self.brokers if not broker.is_formatted]
        with ThreadPoolExecutor(max_workers=len(self.brokers)) as pool:
            for _ in pool.map(self._format_node, new):
                pass

    def _format_node(self, broker: Broker) -> None:
        broker.write_properties()
        levels = [argument for name, level in self._features.items() for argument in ("--feature", f"{name}={level}")]
        arguments = ["format", "--cluster-id", self.cluster_id, "--config", str(broker.properties_file)]
        command = self.java_command("kafka.tools.StorageTool", *arguments, *levels)
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as expired:
            raise PreflightError(
                f"Formatting {broker.folder} took longer than {expired.timeout:.0f} s.", next_step="Try again."
            ) from None
        if run.returncode != 0:
            raise PreflightError(
                f"Kafka cannot format {broker.folder}: {(run.stdout + run.stderr).strip()[-2000:]}\n",
                next_step="Correct the property that it names.",
            )
