"""A MariaDB server for tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkonce.errors import PreflightError
from sparkonce_lab.rig.kafka.jars import cache_folder
from sparkonce_lab.rig.process import HOST, Server, find_program

PROGRAM = "mariadbd"
INSTALL = "mariadb-install-db"
MISSING = "mariadbd is not installed."
NEXT = "Install it (Debian, as root: apt install mariadb-server), or name your own server."
_LOG_SIZE = "--innodb-log-file-size=32M"
_INSTALL_WITHIN_S = 120.0
_GREETS_WITHIN_S = 2.0
_PROTOCOL = bytes([10])


class MariaDBServer(Server):
    """A MariaDB server whose user ``root`` has no password. Its data is copied from a cached folder."""

    def __init__(self, folder: Path, *, options: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        self.options = dict(options or {})

    @staticmethod
    def is_installed() -> bool:
        return find_program(PROGRAM) is not None and find_program(INSTALL) is not None

    @property
    def settings(self) -> dict[str, object]:
        return {"host": HOST, "port": self.port, "user": "root", "password": "", "ssl_disabled": True}

    def initialise(self) -> None:
        self._temporary.mkdir(exist_ok=True)
        if not (self.folder / "mysql").exists():
            shutil.copytree(_template(), self.folder, dirs_exist_ok=True)

    @property
    def _temporary(self) -> Path:
        """The folder of temporary tables. No other server shares it, because a start deletes everything in it."""
        return self.folder.with_name(f"{self.folder.name}-tmp")

    def command(self) -> Sequence[str]:
        more = [f"--{name}={value}" for name, value in self.options.items()]
        program = find_program(PROGRAM) or Path(PROGRAM)
        return [
            str(program),
            "--no-defaults",
            f"--basedir={_base(program)}",
            f"--user={_user()}",
            f"--datadir={self.folder}",
            f"--tmpdir={self._temporary}",
            f"--socket={self.folder / 'mariadb.sock'}",
            f"--port={self.port}",
            f"--bind-address={HOST}",
            _LOG_SIZE,
            "--innodb-buffer-pool-size=64M",
            "--skip-name-resolve",
            # A certificate in `more` turns TLS on again. Without ``--skip-ssl``, MariaDB 11.4 would generate a key at
            # each start, which takes seconds.
            "--skip-ssl",
            *more,
        ]

    def is_up(self) -> bool:
        """Returns True if the server sends a greeting.

        A server that does not accept connections yet sends an error, 0xFF, instead.
        """
        try:
            with socket.create_connection((HOST, self.port), timeout=_GREETS_WITHIN_S) as client:
                return client.recv(5)[4:] == _PROTOCOL
        except OSError:
            return False


def _user() -> str:
    return "root" if os.geteuid() == 0 else str(os.geteuid())


def _base(program: Path) -> Path:
    """Returns the folder of an installation, which may differ from the folder that was compiled into the program."""
    return program.resolve().parents[1]


def _template() -> Path:
    """Returns an empty data folder, created on first use."""
    program = find_program(PROGRAM)
    if program is None or not MariaDBServer.is_installed():
        raise PreflightError(MISSING, next_step=NEXT)
    stamp = f"{program.resolve().stat().st_size:x}-{program.resolve().stat().st_mtime_ns:x}"
    kept = cache_folder() / f"mariadb-{stamp}"
    if kept.exists():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as work:
        made = Path(work) / "data"
        done = subprocess.run(
            [
                str(find_program(INSTALL)),
                "--no-defaults",
                f"--basedir={_base(program)}",
                f"--user={_user()}",
                f"--datadir={made}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                _LOG_SIZE,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=_INSTALL_WITHIN_S,
            env={**os.environ, "TMPDIR": work},
        )
        if done.returncode:
            raise PreflightError(
                f"{INSTALL} ended with exit code {done.returncode}: {(done.stdout + done.stderr)[-2000:]}\n",
                next_step="Remove the cause that it names, and start again.",
            )
        try:
            made.rename(kept)
        except OSError:  # Another process was faster.
            if not kept.exists():
                raise
    return kept
