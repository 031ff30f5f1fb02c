"""A folder of transactions behind a server and a proxy, for testing the matrix itself."""

from __future__ import annotations

import re
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance import folder
from conformance.folder_sink import FolderSink, FolderWriter
from crashes.target import DISK_FULL, MEMORY_FULL, Target
from sparkonce.sink import Facts
from sparkonce_lab.rig.process import HOST, Server
from sparkonce_lab.systems.base import ServerSystem

DEADLINE_S = 1.0
REQUESTS = {"prepare": b" prepare ", "commit": re.compile(rb" (commit|append) "), "abort": b" abort "}


class Connection:
    """Queries the server, connecting if necessary.

    Raises:
        OSError: If `ask` gets no response in time.
    """

    def __init__(self, port: int, folder: str) -> None:
        self._port, self._folder = port, folder
        self._socket: socket.socket | None = None

    def ask(self, *words: str) -> str:
        try:
            if self._socket is None:
                self._socket = socket.create_connection((HOST, self._port), timeout=DEADLINE_S)
            self._socket.sendall(f"{' '.join([self._folder, *words])}\n".encode())
            answer = b""
            while not answer.endswith(b"\n"):
                if not (more := self._socket.recv(65_536)):
                    raise ConnectionError("the server has closed the connection")
                answer += more
            return answer.decode().strip()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        found, self._socket = self._socket, None
        if found is not None:
            found.close()


class ToySink(FolderSink):
    """A correct sink, unless it is given a broken writer or committer."""

    remembers = False  # otherwise, the driver itself would catch some of these errors

    def __init__(self, port: int, folder: str, half: type | None = None) -> None:
        super().__init__(Path(folder), name="toy")
        self.port = port
        writer, committer = self.halves
        if half is not None:
            self.halves = (half, committer) if issubclass(half, FolderWriter) else (writer, half)

    def connect(self) -> Connection:
        return Connection(self.port, str(self.root))

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        return recorded or {"prefix": self.prefix}


class ToyServer(Server):
    def initialise(self) -> None:
        pass

    def command(self) -> Sequence[str]:
        return [sys.executable, "-S", folder.__file__, str(self.folder), str(self.port)]

    def is_up(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True


class ToySystem(ServerSystem):
    name = "toy"

    def start(self, folder: Path) -> None:
        self.start_own(ToyServer(folder), None)
        self.start_proxy((HOST, self.server.port), REQUESTS)

    def place(self, *columns: str) -> None:
        self.folder = f"t{secrets.token_hex(5)}"

    def drop_place(self) -> None:
        pass

    def close(self) -> None:
        pass

    def arguments(self, **options: Any) -> dict[str, Any]:
        return {"port": self.proxy.port, "folder": self.folder, **options}

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> ToySink:
        return ToySink(**arguments)

    def visible(self, *columns: str) -> list[Any]:
        return [int(number) for number in self._ask("see")]

    def left_open(self) -> Sequence[str]:
        return self._ask("names", "open", "prepared")

    def _ask(self, *words: str) -> list[str]:
        connection = Connection(self.server.port, self.folder)
        try:
            return connection.ask(*words).split()
        finally:
            connection.close()


def toy(half: type | None = None, *, system: type[ToySystem] = ToySystem, **more: Any) -> Target:
    """A target. A fault lasts longer than `DEADLINE_S`, so that a client gives up meanwhile."""
    given = {"requests": REQUESTS, "options": {"half": half}, "cannot": (DISK_FULL, MEMORY_FULL), **more}
    return Target("toy", system, gone_within_s=0.5, while_s=1.5, **given)
