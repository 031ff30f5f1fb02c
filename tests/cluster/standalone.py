"""Spark's own cluster manager on loopback: a master, and workers that each act as a host."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from eventually import eventually
from spark.harness import command_of, kill, path_of_tests
from sparkonce_lab.rig.child import session_of
from sparkonce_lab.rig.java import find_java
from sparkonce_lab.rig.kafka.jars import SCALA, spark_jars_folder
from sparkonce_lab.rig.process import ServerProcess

_JAVA = (
    *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    # otherwise, Spark ends an application after ten of its executors have been killed
    "-Dspark.deploy.maxExecutorRetries=-1",
    "-Dspark.decommission.enabled=true",
)


class Daemon:
    """The master or a worker, in its own process session, which includes a worker's executors and drivers.

    Args:
        folder: The folder for its log and its work.
        name: The name of its class, below ``org.apache.spark.deploy``.
        ready: The pattern of the line that it logs when it is ready.
        arguments: Its arguments.
    """

    def __init__(self, folder: Path, name: str, ready: str, *arguments: str) -> None:
        self.folder = folder
        self._name, self._ready, self._arguments = name, ready, arguments
        self._starts = 0
        self._process: ServerProcess | None = None

    def start(self) -> str:
        """Starts it, waits until it is ready, and returns what it has logged so far."""
        self._starts += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{self._starts}.log"
        own = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_SCALA_VERSION": SCALA,  # otherwise, a worker looks for the folders of a Spark source build
            "SPARK_HOME": str(spark_jars_folder().parent),
            "SPARK_LOCAL_DIRS": str(self.folder),
            **path_of_tests(),
        }
        command = [find_java(), *_JAVA, "-cp", f"{spark_jars_folder()}/*", f"-Dlog={log}"]
        command += [f"org.apache.spark.deploy.{self._name}", *self._arguments]
        self._process = ServerProcess(command, mark=str(log), log=log, dies_with_parent=True, env={**os.environ, **own})
        found: re.Match[str] = eventually(lambda: re.search(self._ready, log.read_text()), f"{self._ready} in {log}")
        return found[1]

    def processes(self, words: str = "") -> list[int]:
        """Returns its processes with these words in their command lines."""
        if self._process is None:
            return []
        return [pid for pid in session_of(self._process.pid) if words.encode() in command_of(pid)]

    def kill(self) -> None:
        """Kills everything that runs there (SIGKILL), as if the machine were lost."""
        while pids := self.processes():
            for pid in pids:
                kill(pid)
        if self._process is not None:
            self._process.kill()
            self._process = None


class Standalone:
    """A master, and three workers with one core that each act as a host. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self.workers: list[Daemon] = []
        self._folder = folder
        ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self._master = Daemon(folder / "master", "master.Master", r"Starting Spark master at (spark://\S+)", *ports)

    def __enter__(self) -> Standalone:
        self.url = self._master.start()
        for number in range(3):
            folder = self._folder / f"worker-{number}"
            where = ("--host", f"127.0.0.{number + 2}", "--port", "0", "--webui-port", "0")
            size = ("--work-dir", str(folder / "work"), "--cores", "1", "--memory", "1g")
            self.workers.append(Daemon(folder, "worker.Worker", "(Successfully registered)", *where, *size, self.url))
            self.workers[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in (*self.workers, self._master):
            daemon.kill()

    def executors(self) -> list[int]:
        """Returns the processes of all executors, without their Python workers."""
        return [pid for worker in self.workers for pid in worker.processes("CoarseGrainedExecutorBackend")]

    def ever_started(self) -> int:
        """Counts the executors of all applications so far, including those that are gone."""
        return sum(1 for worker in self.workers for _ in worker.folder.glob("work/app-*/*"))
