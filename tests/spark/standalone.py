"""Spark's own cluster manager, with workers that pass for two hosts: no speculative copy runs beside its original."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from spark.processes import TESTS, descendants, eventually, kill
from sparkonce.embedded.jars import SCALA, find_java, spark_jars_folder
from sparkonce.embedded.process import last_lines

HOSTS = ("127.0.0.2", "127.0.0.3")
_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class Standalone:
    """A master and a worker of one core for each of `HOSTS`. Use as a context manager.

    Attributes:
        url: For Spark's ``master``.
    """

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Standalone:
        log = self._start("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")

        def address() -> str:
            found = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
            return found[1] if found else ""

        self.url = eventually(address, f"the master tells its address in {log}")
        more = ("--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g")
        logs = [
            self._start(
                "worker.Worker", "--host", host, "--work-dir", str(self._folder / f"work-{host}"), *more, self.url
            )
            for host in HOSTS
        ]
        for each in logs:
            eventually(lambda log=each: "Successfully registered" in log.read_text(), f"a worker joins: {each}")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            for pid in [process.pid, *descendants(process.pid)]:
                kill(pid)
            process.wait()

    def _start(self, name: str, *arguments: str) -> Path:
        log = self._folder / f"{name}-{len(self._processes)}.log"
        own = {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
            "SPARK_SCALA_VERSION": SCALA,  # else a worker looks for the folders of a build of Spark
            "SPARK_HOME": str(spark_jars_folder().parent),
            "SPARK_LOCAL_DIRS": str(self._folder),
        }
        with log.open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    [
                        find_java(),
                        *_FLAGS,
                        "-cp",
                        f"{spark_jars_folder()}/*",
                        f"org.apache.spark.deploy.{name}",
                        *arguments,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **own},
                    cwd=self._folder,
                    start_new_session=True,
                )
            )
        return log

    def said(self) -> str:
        """The end of each log."""
        return "\n".join(last_lines(log, 15) for log in sorted(self._folder.glob("*.log")))
