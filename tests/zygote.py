"""A process that has everything imported, and forks children from itself: a child starts in milliseconds.

Its standard input is a Unix socket. A message with a socket attached is a pickled function of that socket: a child runs
it, and the answer is the child's process id. A message without a socket contains names of modules: they are imported,
and the answer is 0. Children end with the connection to their parent, and it ends with its own.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

_MOST_BYTES = 1 << 20
LIMIT_S = 60.0


class Born(NamedTuple):
    pid: int
    channel: socket.socket


class Zygote:
    """The parent's side.

    Args:
        log: The file for the output of the process and its children.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with theirs, log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "zygote"], stdin=theirs, stdout=output, stderr=output, env=env
            )
        self._socket = ours
        self._socket.settimeout(LIMIT_S)

    def fork(self, work: partial[None]) -> Born:
        """Runs the function in a child, with a socket to it as its last argument."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [pickle.dumps(work)], [theirs.fileno()])
        pid = self._answer()
        ours.settimeout(LIMIT_S)
        return Born(pid, ours)

    def load(self, modules: Sequence[str]) -> None:
        """Imports modules for all children from now on."""
        self._socket.send(" ".join(modules).encode())
        self._answer()

    def _answer(self) -> int:
        answer = self._socket.recv(100)
        assert answer, "the process that forks children has died"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(LIMIT_S)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the children
    with socket.socket(fileno=os.dup(0)) as parent:
        while True:
            data, descriptors, _, _ = socket.recv_fds(parent, _MOST_BYTES, 1)
            if not data:
                return
            if not descriptors:
                for module in data.decode().split():
                    importlib.import_module(module)
                parent.send(b"0")
                continue
            with socket.socket(fileno=descriptors[0]) as channel:
                pid = os.fork()
                if pid == 0:
                    parent.close()
                    os.close(0)
                    live(pickle.loads(data), channel)  # noqa: S301 - our parent pickled it
                parent.send(str(pid).encode())


def live(work: Callable[[socket.socket], None], channel: socket.socket) -> None:
    """Never returns: what the parent has set up for its own end is not the child's."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        work(channel)
        code = 0
    except BaseException:  # noqa: BLE001 - the child prints any error and exits
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
