"""A cluster that outlives the command that started it. A file in its folder records the cluster."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.errors import ConfigurationError
from sparkonce_lab.rig.kafka.cluster import Cluster
from sparkonce_lab.rig.kafka.jars import KAFKA_VERSION, cache_folder, file_lock
from sparkonce_lab.rig.process import end_process, is_running

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

_STATE = "cluster.json"
_LOCK = "cluster.lock"
_LOCK_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One recorded node.

    ``mark`` is the path in the process's command line that distinguishes it from a later process with the same id.
    """

    node_id: int
    pid: int
    address: str
    mark: str

    @property
    def running(self) -> bool:
        return is_running(self.pid, self.mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The record of a cluster in its folder, with Kafka's version, ``bootstrap.servers``, and the nodes by id."""

    folder: str
    version: str
    bootstrap: str
    nodes: tuple[Node, ...]

    @property
    def state(self) -> str:
        """``running``, ``partly running`` or ``stopped``, according to the operating system."""
        alive = sum(node.running for node in self.nodes)
        return "stopped" if not alive else "running" if alive == len(self.nodes) else "partly running"


def default_folder() -> Path:
    """Returns the default folder of a cluster: ``broker`` in sparkonce's cache folder."""
    return cache_folder() / "broker"


def status(folder: Path) -> Recorded | None:
    """Returns the cluster that was last started in the folder; None if none is recorded.

    Raises:
        ConfigurationError: If the record cannot be read.
    """
    path = folder.absolute() / _STATE
    try:
        fields = json.loads(path.read_text())
        return Recorded(**{**fields, "nodes": tuple(Node(**node) for node in fields["nodes"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error!r}", next_step="Kill the broker manually, then delete this file."
        ) from error


def up(
    folder: Path,
    *,
    nodes: int = 1,
    version: str = KAFKA_VERSION,
    port: int = 0,
    overrides: Mapping[str, str | int] | None = None,
    heap: str = "1g",
    timeout_s: float = 60.0,
) -> tuple[Recorded, bool]:
    """Starts a cluster in the folder. Changes nothing if the cluster is already running.

    Returns the cluster, and True if this call started it.

    Raises:
        ConfigurationError: If Java is missing, a port is taken, a property is malformed, or only some nodes are
            running.
        PreflightError: If Kafka cannot be downloaded or does not start.
    """
    with _locked(folder):
        found = status(folder)
        if found is not None and found.state == "running":
            return found, False
        if found is not None and found.state == "partly running":
            dead = [node.node_id for node in found.nodes if not node.running]
            raise ConfigurationError(
                f"These nodes of the cluster in {folder} are not running: {dead}.", next_step="sparkonce broker down"
            )
        cluster = Cluster(
            nodes=nodes,
            version=version,
            folder=folder,
            port=port,
            overrides=overrides,
            heap=heap,
            jvm_flags=(),
            dies_with_parent=False,
        )
        try:
            cluster.launch()
            # Record the cluster before it is ready, so that `down` finds it even if this process is killed before then.
            started = _record(cluster)
            cluster.wait_ready(timeout_s)
        except BaseException:
            cluster.close()
            (cluster.folder / _STATE).unlink(missing_ok=True)
            raise
        return started, True


def down(folder: Path, *, delete: bool = False) -> Recorded | None:
    """Stops the cluster in the folder, and returns its record; None if there was none.

    With ``delete``, also deletes data, logs and settings, and the folder if it is then empty.
    """
    if not folder.is_dir():
        return None
    with _locked(folder):
        found = status(folder)
        for node in found.nodes if found else ():
            end_process(node.pid, node.mark, _STOP_TIMEOUT_S)
        if delete:
            for path in (found.parent for found in folder.glob("node-*/server.properties")):
                shutil.rmtree(path)
            (folder / _STATE).unlink(missing_ok=True)
            (folder / _LOCK).unlink(missing_ok=True)
    if delete and not any(folder.iterdir()):
        folder.rmdir()
    return found


def _locked(folder: Path) -> AbstractContextManager[None]:
    return file_lock(folder / _LOCK, time.monotonic() + _LOCK_TIMEOUT_S)


def _record(cluster: Cluster) -> Recorded:
    recorded = Recorded(
        folder=str(cluster.folder),
        version=cluster.version,
        bootstrap=cluster.bootstrap,
        nodes=tuple(
            Node(node_id=each.node_id, pid=each.pid or 0, address=each.address, mark=str(each.properties_file))
            for each in cluster.brokers
        ),
    )
    unfinished = cluster.folder / f"{_STATE}.{os.getpid()}"
    unfinished.write_text(json.dumps(asdict(recorded), indent=2))
    unfinished.replace(cluster.folder / _STATE)
    return recorded
