"""Installs what tests start: servers, a browser, a clock that can be set, and Java; by apt and Go, where it may.

``dev.py`` runs it while it makes the environment, so this needs only the standard library and packages of ours that do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from sparkonce.errors import ConfigurationError
from sparkonce.operate.java import find_java
from sparkonce_lab.clock import find_faketime
from sparkonce_lab.rig.kafka.jars import cache_folder
from sparkonce_lab.rig.process import find_program
from sparkonce_lab.rig.servers.postgres import find_postgres
from sparkonce_lab.rig.servers.s3 import find_versitygw

JAVA = "openjdk-17-jre-headless"
_VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_MEMORY_FOR_FILES = 8 * 2**30


def java() -> None:
    """Sees that there is a Java that Spark and Kafka run on.

    Raises:
        SystemExit: if there is none, and it may not be installed.
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
    """Installs by apt what is missing, and says which tests are skipped for want of it."""
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
    """Builds servers by Go, where there is one: an S3, and what a test's second broker is built from."""
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
    """Puts the tests' files into memory where there is room: servers and logs sync thousands of times.

    A SIGKILL loses nothing that was written, to memory or to a disk. The test of a power cut makes its own disk.
    """
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and memory.is_dir() and os.access(memory, os.W_OK):
        found = os.statvfs(memory)
        if found.f_bavail * found.f_frsize >= _MEMORY_FOR_FILES and not found.f_flag & os.ST_NOEXEC:
            os.environ["TMPDIR"] = str(memory)


def _may_install() -> bool:
    return bool(shutil.which("apt-get")) and os.geteuid() == 0


def _install_stopped(packages: list[str]) -> list[str]:
    """Debian starts a server that it installs, unless a policy forbids it. Returns the packages that were refused."""
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        _apt("update")
        refused = packages if _apt("install", *packages) else []
        return [one for one in refused if _apt("install", one)]  # one that is not known here keeps no other out
    finally:
        if ours:
            policy.unlink()


def _apt(what: str, *packages: str) -> int:
    options = ["-y", "--no-install-recommends"] if packages else []
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", what, "-qq", *options, *packages]
    return subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, check=False).returncode
