"""Spark's own cluster manager, with workers that pass for two hosts: no speculative copy runs beside its original."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from eventually import eventually
from spark.processes import kill, tests_path
from sparkonce.rig.child import session_of
from sparkonce.rig.kafka.jars import SCALA, find_java, spark_jars_folder
from sparkonce.rig.process import ServerProcess

HOSTS = ("127.0.0.2", "127.0.0.3")
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class Standalone:
    """A master and a worker of one core for each of `HOSTS`. Use as a context manager.

    Attributes:
        url: For Spark's ``master``.
    """

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self._folder = folder
        self._processes: list[ServerProcess] = []

    def __enter__(self) -> Standalone:
        ports = ("--port", "0", "--webui-port", "0")
        self.url = self._start(
            r"Starting Spark master at (spark://\S+)", "master.Master", "--host", "127.0.0.1", *ports
        )
        for host in HOSTS:
            more = ("--host", host, "--work-dir", str(self._folder / f"work-{host}"), "--cores", "1", "--memory", "1g")
            self._start("(Successfully registered)", "worker.Worker", *more, *ports, self.url)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            for pid in session_of(process.pid):  # a worker's executors belong to its session
                kill(pid)
            process.kill()

    def _start(self, ready: str, name: str, *arguments: str) -> str:
        """Starts one of Spark's daemons, waits for what it logs when it is ready, and returns that."""
        log = self._folder / f"{name}-{len(self._processes)}.log"
        own = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_SCALA_VERSION": SCALA,  # else a worker looks for the folders of a build of Spark
            "SPARK_HOME": str(spark_jars_folder().parent),
            "SPARK_LOCAL_DIRS": str(self._folder),
            **tests_path(),
        }
        command = [find_java(), *_JAVA, "-cp", f"{spark_jars_folder()}/*", f"-Dlog={log}"]
        command += [f"org.apache.spark.deploy.{name}", *arguments]
        environment = {**os.environ, **own}
        self._processes.append(ServerProcess(command, mark=str(log), log=log, dies_with_parent=True, env=environment))
        found: re.Match[str] = eventually(lambda: re.search(ready, log.read_text()), f"{ready} stands in {log}")
        return found[1]
