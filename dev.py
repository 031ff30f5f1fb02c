#!/usr/bin/env python3
"""Runs sparkonce from a clone, on a machine that has only Python.

    python3 dev.py demo     the main job on an embedded broker, killed and restarted
    python3 dev.py test     what CI runs: every check, then the first tier of tests. More options are pytest's
    python3 dev.py test --all [--shard 2/8] [--seed N]    every test, which takes hours, or one of eight parts of them
    python3 dev.py test --spark 4.2.0 | --kafka 3.9.1 | --server postgres=18.1.0 FILE …    see docs/versions.md
    python3 dev.py coverage                which lines and branches of src/ the in-process tests of the first tier reach
    python3 dev.py simulate --schedules 10_000_000 [--seed N] [--jobs 2]: see docs/simulation.md
    python3 dev.py mutants --resume        which test sees which fault of the product: see tests/mutants/__main__.py
    python3 dev.py example  one of the jobs in examples/, for example: example etl. Without a name it lists them
    python3 dev.py run …    any command in the project's environment, for example: run sparkonce --help
    python3 dev.py lock     resolve the dependencies again, into requirements.lock
    python3 dev.py audit    check the locked packages for known vulnerabilities

It needs only the standard library. It installs uv and the locked packages into .venv, and Java by apt if it may. The
tests also need the databases that the sinks write to, a browser, and libfaketime: it installs them the same way, and
tests whose server cannot be had are skipped by name. A second run starts immediately.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
OURS = [ROOT, *sorted((ROOT / "packages").iterdir())]
"""The projects of this workspace: sparkonce itself, and what is installed beside it."""
VENV = ROOT / ".venv"
TOOLS = ROOT / ".tools"
LOCK = ROOT / "requirements.lock"
JAVA_AT_LEAST = 17
JAVA_PACKAGE = "openjdk-17-jre-headless"
CACHE = Path(
    os.environ.get("SPARKONCE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkonce"
)
AT_ONCE = ("-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder")
"""Three groups of tests at once, see tests/conftest.py: on two cores, since many wait for servers that they kill."""
MEMORY_FOR_FILES = 8 * 2**30
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"


def main(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("help", [])
    match command:
        case "lock":
            return lock()
        case "audit":
            return subprocess.run(
                [*uv_command(), "tool", "run", "pip-audit", "--disable-pip", "-r", str(LOCK)]
            ).returncode
        case "run":
            environment()
            return call(rest)
        case "simulate":
            environment()
            os.environ["PYTHONPATH"] = str(ROOT / "tests")
            return call(["python", "-m", "simulation", *rest])
        case "mutants":
            environment()
            os.environ["PYTHONPATH"] = str(ROOT / "tests")
            return call(["python", "-m", "mutants", *rest])
        case "demo":
            environment()
            java()
            return call(["sparkonce", "demo", *rest])
        case "example":
            environment()
            java()
            return example(rest)
        case "test":
            return test(rest)
        case "coverage":
            servers()
            java()
            return coverage(rest)
    print(__doc__)
    return 0 if command in {"help", "--help", "-h"} else 2


def example(rest: list[str]) -> int:
    """One of the jobs in examples/, by its file's name, with options of its own."""
    jobs = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if "typer.run(" in path.read_text())
    if not rest or rest[0] not in jobs:
        stop(f"there are these examples: {', '.join(jobs)}", f"name one: python3 dev.py example {jobs[0]}")
    return call(["python", str(ROOT / "examples" / f"{rest[0]}.py"), *rest[1:]])


def test(rest: list[str]) -> int:
    """Runs the checks, then the first tier of tests, or with ``--all`` every test."""
    spark = ""
    if "--spark" in rest:
        at = rest.index("--spark")
        spark = rest[at + 1]
        del rest[at : at + 2]
    servers()
    java()
    keep_files_in_memory()
    if spark:
        another_spark(spark)
    elif code := checks():
        return code
    every = ["-m", "slow or not slow"] if spark or "--all" in rest else []
    return call(["pytest", *AT_ONCE, *every, *(one for one in rest if one != "--all")])


def keep_files_in_memory() -> None:
    """Puts the tests' files into memory where there is room: servers and logs sync thousands of times.

    A SIGKILL loses nothing that was written, to memory or to a disk. The test of a power cut makes its own disk.
    """
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and memory.is_dir() and os.access(memory, os.W_OK):
        found = os.statvfs(memory)
        if found.f_bavail * found.f_frsize >= MEMORY_FOR_FILES and not found.f_flag & os.ST_NOEXEC:
            os.environ["TMPDIR"] = str(memory)


def checks() -> int:
    """Runs all checks, two at a time. Returns the exit code of the first that fails, or 0."""
    commands = (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"], ["lint-imports"])
    with ThreadPoolExecutor(2) as pool:
        for command, done in zip(commands, pool.map(run_quietly, commands), strict=True):
            print(f"$ {' '.join(command)}\n{done.stdout}", end="", flush=True)
            if done.returncode:
                return done.returncode
    return 0


def coverage(rest: list[str]) -> int:
    """The tests of the first tier that run sparkonce in their own process, with the lines and branches that they reach."""
    reports = [
        "--cov=sparkonce",
        "--cov-branch",
        "--cov-report=term:skip-covered",
        "--cov-report=json:.coverage.json",
    ]
    folders = [f"tests/{one}" for one in ("unit", "conformance", "integration", "spark")]
    return call(["pytest", *AT_ONCE, "-q", *reports, "-m", "not slow and not killed", *folders, *rest])


def another_spark(version: str) -> None:
    """Makes an environment of its own for this version of PySpark, with everything else as locked; commands use it."""
    global VENV
    VENV = ROOT / f".venv-spark-{version}"
    environment()
    check([*uv_command(), "pip", "install", "--quiet", "--python", str(VENV / "bin" / "python"), f"pyspark=={version}"])


def environment() -> None:
    """Makes .venv hold exactly what requirements.lock says, and the projects of this workspace, editable.

    What is imported is kept compiled, also where the machine asks for nothing to be kept, as images do: tests start
    hundreds of interpreters, each of which would compile pyspark, pandas and sparkonce again.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    read = [LOCK, *(one / "pyproject.toml" for one in OURS)]
    wanted = hashlib.sha256(b"".join(one.read_bytes() for one in read)).hexdigest()
    mark = VENV / "sparkonce.lock"
    if mark.exists() and mark.read_text() == wanted:
        return
    uv = uv_command()
    if not (VENV / "bin" / "python").exists():
        check([*uv, "venv", "--quiet", "--python", sys.executable, str(VENV)])
    python = ["--python", str(VENV / "bin" / "python")]
    check([*uv, "pip", "sync", "--quiet", *python, "--require-hashes", str(LOCK)])
    ours = [word for one in OURS for word in ("--editable", str(one))]
    check([*uv, "pip", "install", "--quiet", *python, "--no-deps", *ours])
    mark.write_text(wanted)


def lock() -> int:
    """Pins every package with its hashes. No index is written down: the one that the machine is set up for counts."""
    resolve = ["pip", "compile", "--universal", "--generate-hashes", "--group", "dev", "--python-version", "3.10"]
    hide = ["--no-emit-index-url", "--custom-compile-command", "python3 dev.py lock", "--quiet"]
    ours = [word for one in OURS for word in ("--no-emit-package", one.name if one != ROOT else "sparkonce")]
    files = [str(one.relative_to(ROOT) / "pyproject.toml") for one in OURS]
    check([*uv_command(), *resolve, *hide, *ours, *files, "--output-file", str(LOCK)])
    return 0


def uv_command() -> list[str]:
    """uv from PATH, or else from a private environment of its own."""
    if found := shutil.which("uv"):
        return [found]
    uv = TOOLS / "bin" / "uv"
    if not uv.exists():
        made = subprocess.run([sys.executable, "-m", "venv", str(TOOLS)], capture_output=True, text=True)
        if made.returncode:
            stop(
                f"{made.stdout}{made.stderr}", "install uv, or Python's venv module (Debian: apt install python3-venv)"
            )
        check([str(TOOLS / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"])
    return [str(uv)]


def java() -> None:
    """Sees that there is a Java that Spark and Kafka run on; installs it by apt where that is allowed."""
    version = java_version()
    if version >= JAVA_AT_LEAST:
        return
    if version == 0 and may_install():
        check(["apt-get", "update", "-qq"])
        check(["apt-get", "install", "-y", "-qq", JAVA_PACKAGE])
        if java_version() >= JAVA_AT_LEAST:
            return
    found = f"java {version} is on PATH" if version else "no java is on PATH"
    stop(found, f"install Java {JAVA_AT_LEAST} or newer (Debian, as root: apt install {JAVA_PACKAGE})")


@functools.cache
def servers() -> None:
    """The environment, and what tests start by themselves, at once: one waits for a network while another compiles."""
    with ThreadPoolExecutor(3) as pool:
        steps = [pool.submit(step) for step in (environment, packages, go_programs)]
    for step in steps:
        step.result()


def packages() -> None:
    """Installs databases, a browser, a clock that can be set, and Java if it is missing: by apt, where that is allowed."""
    postgres = shutil.which("postgres") or any(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    found = {
        "postgresql": postgres,
        "mariadb-server": program("mariadbd"),
        "redis-server": program("redis-server"),
        "rabbitmq-server": program("rabbitmq-server"),
        "chromium": program("chromium") or program("google-chrome"),
        "prometheus": program("promtool"),
        "libfaketime": any(faketime.exists() for faketime in places_of_faketime()),
    }
    missing = [package for package, path in found.items() if not path]
    if missing and may_install():
        install_stopped([*missing, *([] if java_version() else [JAVA_PACKAGE])])
    elif missing:
        print(f"sparkonce: without {', '.join(missing)} the tests that need them are skipped", flush=True)


def places_of_faketime() -> list[Path]:
    """Lists where sparkonce looks for libfaketime; it cannot be asked itself yet."""
    folders = [Path(one) for one in ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib")]
    library = "faketime/libfaketimeMT.so.1"
    return [*(one / library for one in folders), *(found for one in folders for found in one.glob(f"*/{library}"))]


def go_programs() -> None:
    """Servers that tests start, by Go where there is one. A second broker is built by its test, from what is kept here."""
    if shutil.which("go") and not any((CACHE / "bin").glob("kfake-*")):
        subprocess.run(["go", "build", "-o", os.devnull, "."], cwd=ROOT / "tests" / "kfake")
    gateway = CACHE / "bin" / "versitygw"
    if gateway.exists() or not shutil.which("go"):
        return
    gateway.parent.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "GOBIN": str(gateway.parent)}
    if subprocess.run(["go", "install", VERSITYGW], env=env).returncode:
        print("sparkonce: without an S3 server the tests of S3 are skipped", flush=True)


def may_install() -> bool:
    return bool(shutil.which("apt-get")) and os.geteuid() == 0


def install_stopped(packages: list[str]) -> None:
    """Debian starts a server that it installs, unless a policy forbids it. Tests start servers of their own."""
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        apt("update")
        refused = packages if apt("install", *packages) else []
        refused = [one for one in refused if apt("install", one)]  # one that is not known here keeps no other out
        if refused:
            print(f"sparkonce: {', '.join(refused)} could not be installed; their tests are skipped", flush=True)
    finally:
        if ours:
            policy.unlink()


def apt(what: str, *packages: str) -> int:
    options = ["-y", "--no-install-recommends"] if packages else []
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        ["apt-get", what, "-qq", *options, *packages], env=quiet, stdout=subprocess.DEVNULL
    ).returncode


def program(name: str) -> str | None:
    """Where a program is. Servers are often in a folder that is on root's path only."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


def java_version() -> int:
    """The major version of the java that would run, 0 if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return 0
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else 0


def call(command: list[str]) -> int:
    """Runs a command with the project's environment first on PATH."""
    return subprocess.run(**ours(command)).returncode


def run_quietly(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command in the same way, and returns what it prints with its exit code."""
    return subprocess.run(**ours(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ours(command: list[str]) -> dict[str, Any]:
    """Makes the arguments with which a command runs in the project's environment."""
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(VENV)}
    return {"args": [shutil.which(command[0], path=path) or command[0], *command[1:]], "cwd": ROOT, "env": env}


def check(command: list[str]) -> None:
    """Runs a command that must work."""
    if subprocess.run(command, cwd=ROOT).returncode:
        stop(f"this failed: {' '.join(command)}", "read what it said above; a package index must be reachable")


def stop(what: str, advice: str) -> None:
    """Says what is missing and ends."""
    raise SystemExit(f"sparkonce: {what.strip()}\nTo go on: {advice}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
