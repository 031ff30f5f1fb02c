"""Becomes spark-submit: ``python -m cluster.submit MACHINE COMMAND…``, where MACHINE is the JSON of a `Machine`."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from spark import pipeline
from spark.harness import Run, path_of_tests
from spark.pipeline import Config
from sparkonce_lab.rig.child import Child
from sparkonce_lab.rig.kafka.jars import spark_jars_folder

PROGRAM = pipeline.__file__
PYTHON_RUNNER = "org.apache.spark.deploy.PythonRunner"
"""Runs a Python program as the JVM's main class, which is what spark-submit itself does in client mode."""
OTHER_USER = "daemon"
"""Starts a driver on another machine."""


@contextmanager
def open_folder(owner: str | None = None) -> Iterator[Path]:
    """A temporary folder that other users can reach and that the group of `OTHER_USER` can write to."""
    with tempfile.TemporaryDirectory(prefix="sparkonce-shared-", ignore_cleanup_errors=True) as folder:
        shutil.chown(folder, owner, OTHER_USER)
        Path(folder).chmod(0o2775)
        yield Path(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a driver is started."""

    host: str = "127.0.0.1"  # to which executors connect
    folder: str = ""  # the working folder, and the home
    user: str = ""  # by default, the user who runs the tests


def submit_words(config: Config, *, cluster_mode: bool = False) -> list[str]:
    """Returns the command line before the program: master, jars, settings."""
    settings = {
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={config.temporary} {config.jvm_flags}",
        **config.spark,
    }
    words = [str(spark_jars_folder().parent / "bin" / "spark-submit"), "--master", config.master]
    words += (
        ["--deploy-mode", "cluster", "--supervise", "--driver-cores", "1", "--class", PYTHON_RUNNER]
        if cluster_mode
        else []
    )
    words += ["--jars", ",".join(config.jars)] if config.jars else []
    return words + [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


class Submitted(Run):
    """A query's driver as spark-submit starts it: JVM and Python in one session, executors elsewhere."""

    def __init__(self, temporary: str, log: Path, machine: Machine, command: Sequence[str]) -> None:
        arguments = [json.dumps(asdict(machine)), *command]
        own = {**path_of_tests(), "SPARK_HOME": "", "SPARK_LOCAL_IP": machine.host}
        Child.__init__(self, arguments, log=log, temporary=Path(temporary), module="cluster.submit", env=own)


def become(machine: Machine, command: Sequence[str]) -> None:
    """Switches to the machine, and replaces this process with the command."""
    os.environ.pop("SPARK_HOME", None)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # receives what spark-submit and the program write to stderr
    os.umask(0o002)  # the group may write
    if machine.folder:
        os.chdir(machine.folder)
        os.environ["HOME"] = machine.folder
    words = list(command)
    if machine.user:
        group = str(pwd.getpwnam(machine.user).pw_gid)
        os.environ["USER"] = os.environ["LOGNAME"] = machine.user
        # That user must be able to read Python and the jars, which are in the tests' folders.
        reads = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        words = ["setpriv", f"--reuid={machine.user}", f"--regid={group}", "--clear-groups", *reads, *words]
    os.execv(shutil.which(words[0]) or words[0], words)  # noqa: S606 - a list of arguments, built by us


if __name__ == "__main__":
    become(Machine(**json.loads(sys.argv[1])), sys.argv[2:])
