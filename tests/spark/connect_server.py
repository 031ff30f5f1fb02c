"""A Spark Connect server in its own process: ``python -m spark.connect_server SETTINGS``, a JSON of Spark's."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark

from eventually import LIMIT_S, eventually
from spark.harness import AnyJob, kill, path_of_tests
from sparkonce_lab.rig.child import Child, ChildError, session_of
from sparkonce_lab.rig.kafka.jars import spark_kafka_jars
from sparkonce_lab.rig.process import free_port, last_lines
from startup import jvm_flags

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer(Child):
    """A server with its JVM, its workers, and the processes of its queries' functions, until `kill`."""

    def __init__(
        self,
        folder: Path,
        *,
        cores: int = 2,
        spark: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "spark.master": f"local[{cores}]",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.jars": ",".join(map(str, spark_kafka_jars())),
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} {jvm_flags()}",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(folder),
            "spark.python.daemon.module": "preloaded",
            "spark.ui.enabled": "false",
            "spark.log.level": "WARN",
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
            **(spark or {}),
        }
        own = {**path_of_tests(), **(env or {})}
        super().__init__(
            [json.dumps(settings)], log=folder / "server.log", temporary=folder, module="spark.connect_server", env=own
        )
        try:
            eventually(self._answers, "the Connect server answers", limit_s=LIMIT_S)
        except BaseException:
            self.kill()
            raise

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def kill(self, *, spare: int | None = None) -> None:
        """Kills all of its processes at the same time (SIGKILL), or all except one, which becomes an orphan."""
        if spare is None:
            super().kill()
            return
        for pid in session_of(self.pid):
            if pid != spare:
                kill(pid)
        self._process.wait()
        eventually(lambda: set(session_of(self.pid)) <= {spare}, "all but the orphan are gone")

    def _answers(self) -> bool:
        assert self.exit_code() is None, f"the server ended:\n{last_lines(self.log, 40)}"
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


class Client(Child):
    """The process of `spark.connect_job`, which starts the queries of these jobs on a server. It ends with them."""

    def __init__(self, server: ConnectServer, jobs: Sequence[AnyJob], log: Path, **changed: Any) -> None:
        texts = [replace(job.config, **changed).to_json() for job in jobs]
        own, temporary = path_of_tests(), Path(jobs[0].config.temporary)
        self._server = server
        super().__init__([server.url, *texts], log=log, temporary=temporary, module="spark.connect_job", env=own)
        for job in jobs:
            job.runs.append(self)

    def check(self) -> None:
        """Raises, with the end of its log, if it has ended."""
        assert self.exit_code() is None, f"the client ended with {self.exit_code()}:\n{last_lines(self.log, 40)}"

    def finish(self, *, limit_s: float = LIMIT_S) -> None:
        """Waits until its queries have written all of their sources and ended."""
        try:
            self.wait(limit_s)
        except ChildError as error:
            raise AssertionError(f"{error}\n{self._stacks()}") from None
        finally:
            self.kill()
        assert self.exit_code() == 0, f"the client ended with {self.exit_code()}:\n{last_lines(self.log, 60)}"

    def _stacks(self) -> str:
        """Returns the ends of both logs, after every process of the client and of the server has written its stacks."""
        for pid in (*session_of(self.pid), *session_of(self._server.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)
        logs = {self.log: "most recent call first", self._server.log: "JNI global refs"}
        for log, end in logs.items():
            eventually(
                lambda log=log, end=end: end in log.read_text(errors="replace"), f"stacks are in {log}", limit_s=60
            )
        return "\n".join(f"{log}:\n{last_lines(log, 2000)}" for log in logs)


_FUNCTIONS = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"
_LAUNCHER = """#!{python} -IS
import array, json, os, signal, socket, sys
if sys.argv[1:] != ["-m", {functions!r}]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
zygote = socket.socket(socket.AF_UNIX)
zygote.connect({address!r})
output = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))
zygote.sendmsg([json.dumps(dict(os.environ)).encode() + b"\\n"], [output])
child = int(zygote.recv(20))
signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
zygote.recv(1)
"""
"""What Spark starts as the process of a query's function. It has ten seconds to answer, and PySpark takes three to be
imported, on a machine that does nothing else. So it is forked from a process that has imported all."""


def fork_functions(server: socket.socket) -> None:
    """Forks a process for each launcher, with its environment and its output. A launcher ends with its process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for module in ("pandas", "pyarrow.parquet", _FUNCTIONS, "sparkonce.spark.exactly_once", "confluent_kafka"):
        importlib.import_module(module)
    importlib.import_module("spark.connect_job")
    while True:
        launcher, _ = server.accept()
        data, descriptors, _, _ = socket.recv_fds(launcher, 1 << 20, 2)
        while not data.endswith(b"\n"):
            if not (more := launcher.recv(1 << 20)):
                break
            data += more
        if data.endswith(b"\n") and os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, number)
            faulthandler.register(signal.SIGQUIT)
            os.environ.clear()
            os.environ.update(json.loads(data))
            launcher.send(str(os.getpid()).encode())
            server.close()
            sys.argv = [_FUNCTIONS]
            sys.modules.pop(_FUNCTIONS)
            runpy.run_module(_FUNCTIONS, run_name="__main__")
            os._exit(0)
        for descriptor in (launcher.fileno(), *descriptors):
            os.close(descriptor)
        launcher.detach()


def main(settings: Mapping[str, str]) -> None:
    folder = Path(os.environ["TMPDIR"])
    launcher, address = folder / "python", str(folder / "functions")
    launcher.write_text(_LAUNCHER.format(python=sys.executable, functions=_FUNCTIONS, address=address))
    launcher.chmod(0o755)
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen(64)
    if os.fork() == 0:
        fork_functions(server)
    os.dup2(2, 1)  # the JVM writes its stacks to its output, and the log is the errors
    home = str(Path(pyspark.__file__).parent)
    os.environ.update(SPARK_HOME=home, PYSPARK_PYTHON=str(launcher))
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    os.execv(f"{home}/bin/spark-submit", ["spark-submit", "--class", CLASS, *given])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
