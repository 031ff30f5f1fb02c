#!/usr/bin/env python3
"""Runs sparkonce from a clone, on a machine that has only Python.

    python3 dev.py demo     the main job on an embedded broker, killed and restarted
    python3 dev.py test     what CI runs: every check, then the first tier of tests. More options are pytest's
    python3 dev.py test --all [--shard 2/8] [--seed N]    every test, which takes hours, or one of eight parts of them
    python3 dev.py test --spark 4.2.0 | --kafka 3.9.1 | --server postgres=18.1.0 FILE …    see docs/versions.md
    python3 dev.py coverage                which lines and branches of src/ the in-process tests of the first tier reach
    python3 dev.py simulate --schedules 10_000_000 [--seed N] [--jobs 2]: see docs/simulation.md
    python3 dev.py mutants --resume        which test catches which fault of the product: see tests/mutants/__main__.py
    python3 dev.py example  one of the jobs in examples/, for example: example etl. Without a name it lists them
    python3 dev.py run …    any command in the project's environment, for example: run sparkonce --help
    python3 dev.py lock     resolve the dependencies again, into requirements.lock
    python3 dev.py audit    check the locked packages for known vulnerabilities

It needs only the standard library. It installs uv and the locked packages into .venv, and Java with apt if it is
allowed to. The tests also need the databases that the sinks write to, a browser, and libfaketime, which it installs the
same way; tests whose server is unavailable are skipped by name. A second run starts immediately.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
PROJECTS = [ROOT, *sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml"))]
VENV = ROOT / ".venv"
TOOLS = ROOT / ".tools"
LOCK = ROOT / "requirements.lock"
AT_ONCE = ("-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder")
"""Three groups of tests at once, see tests/conftest.py: on two cores, since many wait for servers that they kill."""

sys.path[:0] = [str(ROOT / "tests"), *(str(one / "src") for one in PROJECTS)]


def main(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("help", [])
    match command:
        case "lock":
            return lock()
        case "audit":
            return subprocess.run([*uv(), "tool", "run", "pip-audit", "--disable-pip", "-r", str(LOCK)]).returncode
        case "run":
            environment()
            return call(rest)
        case "simulate" | "mutants":
            environment()
            os.environ["PYTHONPATH"] = str(ROOT / "tests")
            return call(["python", "-m", {"simulate": "simulation"}.get(command, command), *rest])
        case "demo" | "example":
            import machine

            environment()
            machine.java()
            return call(["sparkonce", "demo", *rest]) if command == "demo" else example(rest)
        case "test":
            return test(rest)
        case "coverage":
            servers()
            return coverage(rest)
    print(__doc__)
    return 0 if command in {"help", "--help", "-h"} else 2


def example(rest: list[str]) -> int:
    """Runs one of the jobs in examples/, by its file's name, with its own options."""
    jobs = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if "typer.run(" in path.read_text())
    if not rest or rest[0] not in jobs:
        stop(f"there are these examples: {', '.join(jobs)}", f"name one: python3 dev.py example {jobs[0]}")
    return call(["python", str(ROOT / "examples" / f"{rest[0]}.py"), *rest[1:]])


def test(rest: list[str]) -> int:
    """Runs the checks, then the first tier of tests, or every test with ``--all``."""
    spark = ""
    if "--spark" in rest:
        at = rest.index("--spark")
        spark = rest[at + 1]
        del rest[at : at + 2]
    servers()
    if spark:
        another_spark(spark)
    elif code := checks():
        return code
    every = ["-m", "slow or not slow"] if spark or "--all" in rest else []
    return call(["pytest", *AT_ONCE, *every, *(one for one in rest if one != "--all")])


def checks() -> int:
    """Runs all checks, two at a time. Returns the exit code of the first that fails, or 0."""
    commands = (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"], ["lint-imports"])
    quietly = partial(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with ThreadPoolExecutor(2) as pool:
        for command, done in zip(commands, pool.map(quietly, commands), strict=True):
            print(f"$ {' '.join(command)}\n{done.stdout}", end="", flush=True)
            if done.returncode:
                return done.returncode
    return 0


def coverage(rest: list[str]) -> int:
    """Runs the in-process tests of the first tier, and reports the lines and branches that they reach."""
    reports = ["--cov", "--cov-branch", "--cov-report=term:skip-covered", "--cov-report=json:.coverage.json"]
    folders = [f"tests/{one}" for one in ("unit", "conformance", "integration", "spark")]
    return call(["pytest", *AT_ONCE, "-q", *reports, "-m", "not slow and not killed", *folders, *rest])


def another_spark(version: str) -> None:
    """Creates a separate environment for this version of PySpark, with everything else as locked. Commands use it."""
    global VENV
    VENV = ROOT / f".venv-spark-{version}"
    environment()
    check(
        [*uv(), "pip", "install", "--quiet", "--python", str(VENV / "bin" / "python"), f"pyspark[connect]=={version}"]
    )


def servers() -> None:
    """Sets up the environment and the tests' servers in parallel: one waits for a network while another compiles."""
    import machine

    with ThreadPoolExecutor(3) as pool:
        steps = [pool.submit(one) for one in (environment, machine.packages, machine.go_programs)]
    for step in steps:
        step.result()
    machine.java()
    machine.keep_files_in_memory()


def environment() -> None:
    """Makes .venv hold exactly what requirements.lock says, and our own projects, editable.

    Imported modules are kept compiled even if the machine disables that, as images do: tests start hundreds of
    interpreters, each of which would compile pyspark, pandas and sparkonce again.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    read = [LOCK, *(one / "pyproject.toml" for one in PROJECTS)]
    wanted = hashlib.sha256(b"".join(one.read_bytes() for one in read)).hexdigest()
    mark = VENV / "sparkonce.lock"
    if mark.exists() and mark.read_text() == wanted:
        return
    if not (VENV / "bin" / "python").exists():
        check([*uv(), "venv", "--quiet", "--python", sys.executable, str(VENV)])
    pip, python = [*uv(), "pip"], ["--quiet", "--python", str(VENV / "bin" / "python")]
    check([*pip, "sync", *python, "--require-hashes", str(LOCK)])
    check([*pip, "install", *python, "--no-deps", *(word for one in PROJECTS for word in ("--editable", str(one)))])
    mark.write_text(wanted)


def lock() -> int:
    """Pins every package with its hashes. No index is recorded: the machine's own configuration decides."""
    resolve = ["pip", "compile", "--universal", "--generate-hashes", "--group", "dev", "--python-version", "3.10"]
    hide = ["--no-emit-index-url", "--custom-compile-command", "python3 dev.py lock", "--quiet"]
    ours = [word for name in ("sparkonce", *(one.name for one in PROJECTS[1:])) for word in ("--no-emit-package", name)]
    files = [str((one / "pyproject.toml").relative_to(ROOT)) for one in PROJECTS]
    check([*uv(), *resolve, *hide, *ours, *files, "--output-file", str(LOCK)])
    return 0


def uv() -> list[str]:
    """Returns uv from PATH, or else from a private environment."""
    if found := shutil.which("uv"):
        return [found]
    own = TOOLS / "bin" / "uv"
    if not own.exists():
        made = subprocess.run([sys.executable, "-m", "venv", str(TOOLS)], capture_output=True, text=True)
        if made.returncode:
            advice = "install uv, or Python's venv module (Debian: apt install python3-venv)"
            stop(f"{made.stdout}{made.stderr}", advice)
        check([str(TOOLS / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"])
    return [str(own)]


def call(command: list[str]) -> int:
    """Runs a command with the project's environment first on PATH."""
    return run(command).returncode


def run(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command in the same way, and returns its result."""
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(VENV)}
    program = shutil.which(command[0], path=path) or command[0]
    return subprocess.run([program, *command[1:]], cwd=ROOT, env=env, text=True, **more)


def check(command: list[str]) -> None:
    """Runs a command that must succeed."""
    if subprocess.run(command, cwd=ROOT).returncode:
        stop(f"this failed: {' '.join(command)}", "read its output above; a package index must be reachable")


def stop(what: str, advice: str) -> None:
    """Reports what is missing and exits."""
    raise SystemExit(f"sparkonce: {what.strip()}\nTo go on: {advice}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
