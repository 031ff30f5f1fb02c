"""Runs tests with other versions of Spark, Python and Kafka, and prints a table: ``python3 dev.py versions``.

::

    python3 dev.py versions                     # all of them, an hour and a half
    python3 dev.py versions 4.1.1 kafka-3.9.1   # those whose name has one of these words
    python3 dev.py versions 4.2 -k checksums    # more arguments are pytest's

Each Spark has an environment of its own in ``.versions``, with the wheel that is built from this clone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from versions.table import BROKERS, ENGINES, OF_EACH_KAFKA, Brokers, Engine

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".versions"
EXTRAS = "avro,hdfs,s3,objects,postgres,mysql,redis,rabbitmq"
NEEDED = ("pytest", "pytest-timeout", "pytest-xdist", "psutil", "protobuf", "hypothesis", "greenlet", "duckdb")
"""What tests need beside sparkonce."""
PATIENT = {"SPARKONCE_PATIENCE": "4"}
"""Tests wait four times as long as elsewhere: this takes hours, on a machine that does something else meanwhile."""


def main(arguments: Sequence[str]) -> int:
    first = next((number for number, one in enumerate(arguments) if one.startswith("-")), len(arguments))
    words, more = arguments[:first], arguments[first:]
    chosen = [one for one in (*ENGINES, *BROKERS) if not words or any(word in str(one) for word in words)]
    lines = [run(one, more) for one in chosen]
    print("\n".join(["", *lines]))
    return int(not lines or any(" 0 failed" not in line for line in lines))


def run(version: Engine | Brokers, more: Sequence[str]) -> str:
    """Runs a version's tests, and returns what came of them in one line."""
    report = FOLDER / f"{version}.xml"
    FOLDER.mkdir(exist_ok=True)
    if isinstance(version, Engine):
        python, tests = environment(version), [*version.tests]
    else:
        python = Path(sys.executable)
        tests = [*OF_EACH_KAFKA, "-k", "kafka or Kafka or kills or brokers", "-p", "versions.plugin", *version.options]
    began = time.monotonic()
    env = {**PATIENT, **os.environ, "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]])}
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-m",
        "versions or not slow",
        "--timeout=3600",
        "-p",
        "no:cacheprovider",
        f"--junit-xml={report}",
        *tests,
        *more,
    ]
    with report.with_suffix(".log").open("w") as log:
        subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=env)
    line = f"{version}: {told_by(report)}, {time.monotonic() - began:.0f} s"
    print(line, flush=True)
    return line


def told_by(report: Path) -> str:
    """Returns how many tests have passed, failed and were skipped."""
    if not report.exists():
        return "pytest did not run"
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    skipped = int(suite.attrib["skipped"])
    return f"{int(suite.attrib['tests']) - failed - skipped} passed, {failed} failed, {skipped} skipped"


def environment(version: Engine) -> Path:
    """Makes the environment of a version of Spark, with the clone's wheel, and returns its Python."""
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    folder = FOLDER / str(version)
    python = folder / "bin" / "python"
    wheels = FOLDER / "wheels"
    subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", wheels, ROOT], check=True)
    wheel = max(wheels.glob("*.whl"), key=lambda one: one.stat().st_mtime)
    if not python.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", interpreter(version.python), folder], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", python]
    subprocess.run(
        [*install, f"sparkonce[{EXTRAS}] @ {wheel.as_uri()}", f"pyspark=={version.spark}", *NEEDED], check=True
    )
    subprocess.run([*install, "--no-deps", "--reinstall", wheel], check=True)
    return python


def interpreter(version: str) -> str:
    """Returns a Python of pyenv's, or else the version, which uv looks for and fetches."""
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(found[-1]) if found else version


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
