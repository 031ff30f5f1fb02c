"""PostgreSQL for tests."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.errors import PreflightError
from sparkonce_lab.rig.process import DOWN_WITHIN_S, HOST, POLL_S, Server, find_program, is_running

if TYPE_CHECKING:
    from typing_extensions import Self

MISSING = "PostgreSQL is not installed."
NEXT = "Install it (Debian, as root: apt install postgresql), or name your own server."
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ")


def find_postgres() -> Path | None:
    """Finds the folder of PostgreSQL's programs, of the newest version if there are several; None if there is none."""
    found = find_program("postgres", *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))
    if found is None:
        return None
    folder = found.resolve().parent
    return folder if (folder / "initdb").exists() else None


class PostgresServer(Server):
    """A PostgreSQL server with the superuser ``postgres``, who needs no password.

    PostgreSQL does not run as root. If this process runs as root, the server runs as the user ``postgres``, who must be
    able to access the folder. Pytest's own folders are therefore not suitable.

    Args:
        settings: Server settings, such as ``{"max_prepared_transactions": "0"}``.
        files: Files that are copied into the data folder under these names, readable only by the server: keys,
            certificates, and ``pg_hba.conf``, which controls who may log in and how.
        programs: The folder with the server's programs. Defaults to the installed ones.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        files: Mapping[str, bytes] | None = None,
        programs: Path | None = None,
    ) -> None:
        programs = programs or find_postgres()
        if programs is None:
            raise PreflightError(MISSING, next_step=NEXT)
        self._programs = programs
        self.user = "postgres" if os.geteuid() == 0 else None
        self._parent = Path(tempfile.mkdtemp(prefix="sparkonce-postgres-"))
        self._parent.chmod(0o755)
        super().__init__(self._parent / "data")
        self.settings = {"max_prepared_transactions": "50", **(settings or {})}
        self.files = dict(files or {})

    stop_signal = signal.SIGINT
    """The signal for a fast shutdown. SIGTERM would wait for clients to disconnect."""

    def initialise(self) -> None:
        """Creates the server's data by copying what ``initdb`` has created once in this process."""
        if (self.folder / "PG_VERSION").exists():
            return
        template = _template_folder(self._programs)
        if not (template / "PG_VERSION").exists():
            if self.user is not None:
                shutil.chown(template, self.user, self.user)
            self._run("initdb", "-D", str(template), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        # cp preserves owners and modes, which shutil.copytree does not.
        subprocess.run(["cp", "-a", f"{template}/.", str(self.folder)], check=True)
        for name, content in self.files.items():
            path = self.folder / name
            path.write_bytes(content)
            path.chmod(0o600)
            if self.user is not None:
                shutil.chown(path, self.user, self.user)

    def command(self) -> Sequence[str]:
        own = {"listen_addresses": HOST, "unix_socket_directories": "", **self.settings}
        return [
            str(self._programs / "postgres"),
            *("-D", str(self.folder), "-p", str(self.port)),
            *(word for name, value in own.items() for word in ("-c", f"{name}={value}")),
        ]

    def env(self) -> Mapping[str, str]:
        """Returns the environment, without variables that a shell may have set for PostgreSQL's clients."""
        return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}

    def is_up(self) -> bool:
        """Returns True if the server accepts connections, according to its own file, which ``pg_ctl`` also reads."""
        try:
            said = (self.folder / "postmaster.pid").read_text().split()
        except OSError:
            return False
        return said[:1] == [str(self.pid)] and said[-1] == "ready"

    def kill(self) -> None:
        """Kills all processes of the server. PostgreSQL cannot start again before the last of them is gone."""
        mains = [] if self.pid is None else [str(self.pid)]
        children = [pid for main in mains for pid in _children(main)]
        super().kill()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        give_up_at = time.monotonic() + DOWN_WITHIN_S
        while any(is_running(pid, "postgres") for pid in children) and time.monotonic() < give_up_at:
            time.sleep(POLL_S)

    def pause(self) -> None:
        super().pause()
        self._signal_children(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_children(signal.SIGCONT)
        super().resume()

    def _signal_children(self, number: signal.Signals) -> None:
        for pid in [] if self.pid is None else _children(str(self.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def conninfo(self, *, dbname: str = "postgres", user: str = "postgres") -> str:
        return f"host={HOST} port={self.port} dbname={dbname} user={user}"

    def delete(self) -> None:
        shutil.rmtree(self._parent, ignore_errors=True)

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self.delete()

    def __enter__(self) -> Self:
        try:
            return super().__enter__()
        except BaseException:
            self.delete()
            raise

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            user=self.user,
            group=self.user,
            extra_groups=[] if self.user else None,
            env=dict(self.env()),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise PreflightError(
                f"{program} ended with exit code {done.returncode}: {done.stderr.strip()}\n",
                next_step="Remove the cause that it names, and start again.",
            )


@cache
def _template_folder(programs: Path) -> Path:  # noqa: ARG001 - each version has separate data
    """Returns the data that ``initdb`` creates once, with one system_identifier, for all servers of this process."""
    parent = Path(tempfile.mkdtemp(prefix="sparkonce-postgres-template-"))
    parent.chmod(0o755)
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    folder = parent / "data"
    folder.mkdir(mode=0o700)
    return folder


def _children(pid: str) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", pid], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]
