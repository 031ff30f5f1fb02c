"""Starts a broker and an example, sends rows to the example, and counts its output."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sparkonce_lab.registry import RegistryServer
from sparkonce_lab.rig.kafka import Cluster, spark_avro_jars, spark_kafka_jars
from tryout.checkpoint import RETAIN
from tryout.sample import Sample
from tryout.trial import Count, Trial

FEED_S = 20.0
CHUNKS = 40
LIMIT_S = 600.0
POLL_S = 1.0

# Remove these variables: they could select a Spark that does not match the jars, or change how Spark starts.
_UNWANTED = ("SPARK_HOME", "SPARK_REMOTE", "PYSPARK_DRIVER_PYTHON")


def try_out(script: str, sample: Sample, options: Sequence[str]) -> int:
    """Runs an example on a sample, with a separate broker, and shows the result.

    Args:
        script: The example.
        sample: The sample to send.
        options: Additional options of the example.

    Returns:
        The exit code: 0 if every expected row was written once, and no other row was written.
    """
    console = Console()
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkonce-example-", ignore_cleanup_errors=True))
        )
        console.print("Starting a broker. The first time, jars are fetched into sparkonce's cache.", style="dim")
        kafka = stack.enter_context(Cluster())
        registry = stack.enter_context(RegistryServer()).url if sample.registry else None
        trial = Trial(sample, bootstrap=kafka.bootstrap, checkpoint=folder / "checkpoint", registry=registry)
        trial.make_topics()
        own = ["--bootstrap", kafka.bootstrap, "--checkpoint", str(folder / "checkpoint")]
        own += ["--registry", registry] if registry else []
        command = [sys.executable, script, *sample.options, *options, *own]
        console.print("$ python", *command[1:], style="bold", soft_wrap=True, highlight=False)
        job = stack.enter_context(_running(command, folder))
        _feed(trial, job, console)
        count = _wait(trial, job)
    _show(console, count, sample)
    return 0 if count.is_done else 1


def spark_environment(folder: Path, *, cores: int = 5, java: str = "") -> dict[str, str]:
    """Returns an environment in which PySpark starts with settings that spark-submit would get as arguments.

    Args:
        folder: The folder for everything that Spark leaves behind if it is killed.
        cores: The number of tasks that run in parallel.
        java: Flags for the JVM.
    """
    packages = ",".join(str(jar) for jar in [*spark_kafka_jars(), *spark_avro_jars()])
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} {java}".strip(),
        "spark.local.dir": str(folder),
        "spark.log.level": "WARN",
        RETAIN: "100000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return {
        **{name: value for name, value in os.environ.items() if name not in _UNWANTED},
        "PYSPARK_SUBMIT_ARGS": shlex.join(["--master", f"local[{cores}]", "--jars", packages, *words, "pyspark-shell"]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(folder),
    }


@contextmanager
def _running(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the example in a separate process group, which is killed at the end, as any process may be at any time."""
    job = subprocess.Popen(command, env=spark_environment(folder), start_new_session=True)
    try:
        yield job
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def _feed(trial: Trial, job: subprocess.Popen[bytes], console: Console) -> None:
    """Sends the sample in small parts, like a stream."""
    messages = trial.messages()
    size = -(-len(messages) // CHUNKS)
    for start in range(0, len(messages), size):
        trial.send(messages[start : start + size])
        give_up_at = time.monotonic() + LIMIT_S
        while not trial.has_begun() and job.poll() is None and time.monotonic() < give_up_at:
            time.sleep(POLL_S)
        if job.poll() is not None:
            return
        if start == 0:
            console.print(f"Feeding {len(messages):,} records in {FEED_S:.0f} s.", style="bold")
        time.sleep(FEED_S / CHUNKS)


def _wait(trial: Trial, job: subprocess.Popen[bytes]) -> Count:
    """Advances the time until all rows were written, the deadline has passed, or the example has ended."""
    give_up_at = time.monotonic() + LIMIT_S
    while True:
        count = trial.count()
        if count.is_done or job.poll() is not None or time.monotonic() > give_up_at:
            return count
        if not count.unread:
            trial.close()
        time.sleep(POLL_S)


def _show(console: Console, count: Count, sample: Sample) -> None:
    table = Table("a read_committed reader of " + sample.target)
    table.add_column("records", justify="right")
    for name in ("expected", "seen", "missing", "doubled", "strange"):
        number = getattr(count, name)
        wrong = number and name in ("missing", "doubled", "strange")
        table.add_row(name, f"[bold red]{number:,}[/]" if wrong else f"{number:,}")
    console.print()
    console.print(table)
    console.print(
        f"{count.late:,} records came too late for their window and were dropped. The job was ended by SIGKILL: it "
        "needs no other way.",
        style="dim",
        soft_wrap=True,
    )
    console.print("[bold green]exactly once[/]" if count.is_done else f"[bold red]NOT exactly once[/]: {count}")
