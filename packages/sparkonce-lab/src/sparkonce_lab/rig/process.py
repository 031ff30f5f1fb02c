"""A server's process, with ports that stay the same across restarts, and the base class of all servers.

A server can be stopped or killed, and be started again with its data. The server ends when this process ends, at the
latest.
"""

from __future__ import annotations

import abc
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.errors import PreflightError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType

    from typing_extensions import Self


HOST = "127.0.0.1"

# These ports are below the range that operating systems assign to outgoing connections. Otherwise, a client that tries
# to reach a stopped server could be assigned that server's port, connect to itself, and keep the server from starting
# again.
_PORTS = range(20_000, 32_000)
_FOUND_WITHIN_S = 10.0


def is_free(port: int) -> bool:
    """Returns True if a server can currently listen on this loopback port."""
    with socket.socket() as candidate:
        # The servers' own sockets have this option, too.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Finds a port on which nothing is currently listening."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Finds this many different ports on which nothing is currently listening."""
    found: set[int] = set()
    give_up_at = time.monotonic() + _FOUND_WITHIN_S
    while len(found) < count:
        port = secrets.choice(_PORTS)
        if is_free(port):
            found.add(port)
        elif time.monotonic() > give_up_at:
            raise PreflightError(
                f"There are no {count} free ports from {_PORTS.start} to {_PORTS.stop}.",
                next_step="Stop what listens there.",
            )
    return list(found)


POLL_S = 0.05
DOWN_WITHIN_S = 30.0
_FREEZE_POLL_S = 0.005

# The watchdog waits until its standard input closes, which happens no matter how the parent dies. It then kills the
# process, unless the process id has been reused.
_WATCHDOG = """
read -r _
found=$(tr '\\0' ' ' 2>/dev/null <"/proc/$1/cmdline" || ps -o command= -p "$1")
case "$found" in *"$2"*) kill -9 "$1" ;; esac
"""


class ServerProcess:
    """A process in a separate session, identified by its id and by a mark in its command line.

    Args:
        command: The program and its arguments, including ``mark``.
        mark: A path that no other process has in its command line.
        log: The file to which its output is appended.
        dies_with_parent: True if the process ends when this one does, even by SIGKILL.
        user: The user that runs it, for servers that refuse to run as root. Defaults to the current user.
        env: Its environment. Defaults to this process's environment.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        mark: str,
        log: Path,
        dies_with_parent: bool,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.mark = mark
        self._watchdog: subprocess.Popen[bytes] | None = None
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=[] if user else None,
                env=env,
            )
        if dies_with_parent:
            self._watchdog = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(self.pid), mark],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code: None while the process is running, negative if a signal ended it."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Waits at most this many seconds for the process to end. Returns False if it is still running."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._dismiss_watchdog()
        return True

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._dismiss_watchdog()

    def _dismiss_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None


class Restartable:
    """A server with at most one process at a time, which `stop_signal` asks to shut down.

    A subclass starts the process, with the previous data and ports.
    """

    stop_signal = signal.SIGTERM
    _process: ServerProcess | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.exit_code is None else None

    def ask_to_stop(self) -> None:
        """Begins a normal shutdown without waiting for it, even of a paused process."""
        self._signal(self.stop_signal, signal.SIGCONT)

    def stop(self, timeout_s: float = DOWN_WITHIN_S) -> bool:
        """Shuts the server down normally, or by force after this many seconds. Returns True if it ended normally."""
        self.ask_to_stop()
        if self._process is None or self._process.wait(timeout_s):
            return True
        self._process.kill()
        return False

    def kill(self) -> None:
        """Ends the server with SIGKILL, as in a crash. Its data remains."""
        if self._process is not None:
            self._process.kill()

    def pause(self) -> None:
        """Pauses the server (SIGSTOP). Connections stay open, and on return none of its threads responds anymore."""
        freeze(lambda: [] if self.pid is None else [self.pid])

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses the server inside the block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def _signal(self, *numbers: signal.Signals) -> None:
        if self._process is not None:
            for number in numbers:
                self._process.signal(number)


def is_running(pid: int, mark: str) -> bool:
    """Returns True if the process with this id is alive and has the mark in its command line."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        command = subprocess.run(
            ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    return mark in command


def end_process(pid: int, mark: str, timeout_s: float) -> None:
    """Ends a process that another process started: normally or, if it keeps running, by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not is_running(pid, mark):
            return
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)
        give_up_at = time.monotonic() + timeout_s
        while is_running(pid, mark) and time.monotonic() < give_up_at:
            time.sleep(POLL_S)


@contextmanager
def end_on_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end this process like Ctrl-C, which ends its processes and deletes temporary folders.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def freeze(list_pids: Callable[[], Iterable[int]], limit_s: float = 60.0) -> None:
    """Sends SIGSTOP, and waits until every thread of these processes has stopped.

    ``list_pids`` is called repeatedly, since a process that is still running may start another one.

    Raises:
        TimeoutError: If a process is still running after ``limit_s``.
    """
    give_up_at = time.monotonic() + limit_s
    while True:
        pids = list(list_pids())
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        running = [pid for pid in pids if not _stands_still(pid)]
        if not running:
            return
        if time.monotonic() >= give_up_at:
            raise TimeoutError(f"the processes {running} still run {limit_s:g} s after SIGSTOP")
        time.sleep(_FREEZE_POLL_S)


def _stands_still(pid: int) -> bool:
    """Returns True if every thread of a process is stopped or has ended, or if there is no /proc to show it."""
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                # In this file, the thread's state follows its name, which is in brackets and may contain any character.
                if (thread / "stat").read_text().rpartition(")")[2].split()[0] not in "TtZX":
                    return False
    return True


def last_lines(log: Path, count: int) -> str:
    """Returns the last lines of a log; empty if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 64 * 1024))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
    except OSError:
        return ""


UP_WITHIN_S = 60.0


class Server(Restartable, abc.ABC):
    """A server that keeps its port and its data across restarts. Use it as a context manager.

    The path of its folder must be part of `command`, because it identifies the process. The port defaults to a free
    one. The server must be up within `up_within_s` seconds.
    """

    user: str | None = None
    up_within_s = UP_WITHIN_S

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = free_port() if port is None else port

    @abc.abstractmethod
    def initialise(self) -> None:
        """Creates the server's data. Called before each start, so it must preserve existing data."""

    @abc.abstractmethod
    def command(self) -> Sequence[str]:
        """Returns the program and its arguments."""

    @abc.abstractmethod
    def is_up(self) -> bool:
        """Returns True if the server responds."""

    def env(self) -> Mapping[str, str] | None:
        return None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def start(self) -> None:
        """Starts the server, and waits until it responds."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.initialise()
        self._process = ServerProcess(
            list(self.command()),
            mark=str(self.folder),
            log=self.log,
            dies_with_parent=True,
            user=self.user,
            env=self.env(),
        )
        give_up_at = time.monotonic() + self.up_within_s
        while not self.is_up():
            ended = self._process.exit_code
            if ended is not None or time.monotonic() >= give_up_at:
                self.kill()
                raise PreflightError(
                    f"{self.command()[0]} did not come up on port {self.port} within {self.up_within_s:g} s (exit code "
                    f"{ended}). The end of {self.log}:\n{last_lines(self.log, 20)}\n",
                    next_step="Read the log, and start the server again.",
                )
            time.sleep(POLL_S)

    def restart(self) -> None:
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def find_program(name: str, *more: Path) -> Path | None:
    """Finds a server's program on PATH, in the folders of root's PATH, or in ``more``."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", "/usr/local/sbin", *map(str, more)]
    found = shutil.which(name, path=os.pathsep.join(folders))
    return Path(found) if found else None


class Background(abc.ABC):
    """Work in a separate thread. A subclass defines the work."""

    def __init__(self, name: str, stops_within_s: float) -> None:
        self.stopping = threading.Event()
        self._stops_within_s = stops_within_s
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abc.abstractmethod
    def work(self) -> None:
        """Works until `stopping` is set."""

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raises the error that ended the work, if there is one."""
        if self._error is not None:
            raise self.failed(self._error) from self._error

    def failed(self, error: BaseException) -> BaseException:
        """Returns the error that `check` raises for an error of the work."""
        return error

    def stop(self) -> None:
        """Stops the thread, and waits for its end. May be called repeatedly."""
        self.stopping.set()
        if self._thread.is_alive():
            self._thread.join(self._stops_within_s)
        self.check()

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the thread that waits
            self._error = error
