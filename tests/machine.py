"""Installs what the tests start: servers, a browser, libfaketime and Java. It uses apt and Go where it can.

``dev.py`` runs it while it creates the environment, so it may only import the standard library and those of our modules
that do the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from sparkonce.errors import ConfigurationError
from sparkonce_lab.clock import find_faketime
from sparkonce_lab.rig.java import find_java
from sparkonce_lab.rig.kafka.jars import cache_folder
from sparkonce_lab.rig.process import find_program
from sparkonce_lab.rig.servers.postgres import find_postgres
from sparkonce_lab.rig.servers.s3 import find_versitygw

JAVA = "openjdk-17-jre-headless"
_VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_MEMORY_FOR_FILES = 8 * 2**30


def java() -> None:
    """Makes sure that there is a Java version that Spark and Kafka run on.

    Raises:
        SystemExit: If there is none and it cannot be installed.
    """
    try:
        find_java()
    except ConfigurationError as error:
        if not _may_install() or shutil.which("java"):
            raise SystemExit(f"sparkonce: {error} (Debian, as root: apt install {JAVA})") from error
        _apt("update")
        _apt("install", JAVA)
        find_java()


def packages() -> None:
    """Installs missing packages with apt, and prints which tests are skipped without them."""
    found = {
        "postgresql": find_postgres(),
        "mariadb-server": find_program("mariadbd"),
        "redis-server": find_program("redis-server"),
        "rabbitmq-server": find_program("rabbitmq-server"),
        "chromium": find_program("chromium") or find_program("google-chrome"),
        "prometheus": find_program("promtool"),
        "libfaketime": find_faketime(),
        JAVA: shutil.which("java"),
    }
    missing = [package for package, path in found.items() if not path]
    if missing and _may_install():
        missing = _install_stopped(missing)
    if missing:
        print(f"sparkonce: without {', '.join(missing)} the tests that need them are skipped", flush=True)


def go_programs() -> None:
    """Builds servers with Go, if Go is installed: an S3 server, and the dependencies of the second Kafka broker."""
    if not shutil.which("go"):
        return
    programs = cache_folder() / "bin"
    if not any(programs.glob("kfake-*")):
        subprocess.run(["go", "build", "-o", os.devnull, "."], cwd=Path(__file__).parent / "kfake", check=False)
    if find_versitygw() is None:
        programs.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["go", "install", _VERSITYGW], env={**os.environ, "GOBIN": str(programs)}, check=False)
        if done.returncode:
            print("sparkonce: without an S3 server the tests of S3 are skipped", flush=True)


def keep_files_in_memory() -> None:
    """Moves the tests' files to memory if there is enough, since servers and logs call fsync thousands of times.

    A SIGKILL loses no written data, neither in memory nor on disk. The power-failure test creates its own disk.
    """
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and memory.is_dir() and os.access(memory, os.W_OK):
        found = os.statvfs(memory)
        if found.f_bavail * found.f_frsize >= _MEMORY_FOR_FILES and not found.f_flag & os.ST_NOEXEC:
            os.environ["TMPDIR"] = str(memory)


def _may_install() -> bool:
    return bool(shutil.which("apt-get")) and os.geteuid() == 0


def _install_stopped(packages: list[str]) -> list[str]:
    """Installs packages without starting their servers, which Debian would do by default. Returns those that failed."""
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        _apt("update")
        refused = packages if _apt("install", *packages) else []
        # an unknown package must not prevent the others from being installed
        return [one for one in refused if _apt("install", one)]
    finally:
        if ours:
            policy.unlink()


def _apt(what: str, *packages: str) -> int:
    options = ["-y", "--no-install-recommends"] if packages else []
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", what, "-qq", *options, *packages]
    return subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, check=False).returncode
