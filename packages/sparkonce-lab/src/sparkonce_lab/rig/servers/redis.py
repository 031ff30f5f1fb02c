"""Redis servers for tests: a single one, or three masters that form a cluster."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce_lab.rig.process import HOST, UP_WITHIN_S, Server, find_program, free_ports

_HASH_SLOTS = 16384
_POLL_S = 0.02
_FORMS_WITHIN_S = 60.0


class RedisServer(Server):
    """``redis-server`` with an append-only file."""

    def __init__(self, folder: Path, port: int | None = None, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, port)
        # Redis must not change its title, because the command line identifies the process.
        plain = {"set-proc-title": "no", "appendonly": "yes", "appendfsync": "always", "save": ""}
        self.settings = {**plain, **(settings or {})}

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def initialise(self) -> None:
        """Does nothing, because the server needs only its folder."""

    def command(self) -> Sequence[str]:
        program = find_program("redis-server")
        if program is None:
            raise ConfigurationError(
                "redis-server is not installed.", next_step="Install it (Debian, as root: apt install redis-server)."
            )
        more = [word for name, value in self.settings.items() for word in (f"--{name}", *(value.split() or [""]))]
        return [str(program), "--port", str(self.port), "--bind", HOST, "--dir", str(self.folder), *more]

    def is_up(self) -> bool:
        try:
            return self.ask("PING") == "+PONG"
        except OSError:
            return False

    def ask(self, *words: str) -> str:
        """Sends a command and returns the first line of the response, even while clients cannot connect yet."""
        with socket.create_connection((HOST, self.port), timeout=UP_WITHIN_S) as line, line.makefile("rb") as answers:
            parts = [f"*{len(words)}\r\n", *(f"${len(word)}\r\n{word}\r\n" for word in words)]
            line.sendall("".join(parts).encode())
            return answers.readline().decode().strip()


class RedisCluster:
    """Three masters without replicas. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        more = {"cluster-enabled": "yes", "cluster-node-timeout": "2000", "cluster-require-full-coverage": "no"}
        # Set cluster-port: its default is the port plus 10,000, which a client's connection may already use.
        ports = free_ports(6)
        self.nodes = [
            RedisServer(folder / f"node{number}", ports[number], {**more, "cluster-port": str(ports[number + 3])})
            for number in range(3)
        ]

    @property
    def url(self) -> str:
        return self.nodes[0].url

    def start(self) -> None:
        """Starts the nodes, assigns each a third of the hash slots, and waits until they know each other."""
        for node in self.nodes:
            node.folder.mkdir(parents=True, exist_ok=True)
            node.start()
        count = len(self.nodes)
        for number, node in enumerate(self.nodes):
            first, end = _HASH_SLOTS * number // count, _HASH_SLOTS * (number + 1) // count
            node.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1))
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            self.nodes[0].ask("CLUSTER", "MEET", HOST, str(node.port), node.settings["cluster-port"])
        self.await_formed()

    def restart(self) -> None:
        """Kills all nodes and starts them again with their data."""
        for node in self.nodes:
            node.kill()
        for node in self.nodes:
            node.start()
        self.await_formed()

    def await_formed(self) -> None:
        """Waits until every node sees that all hash slots are served."""
        give_up_at = time.monotonic() + _FORMS_WITHIN_S
        while not all(self._sees_all(node) for node in self.nodes):
            if time.monotonic() >= give_up_at:
                raise PreflightError(
                    f"The nodes in {self.nodes[0].folder.parent} formed no cluster within {_FORMS_WITHIN_S:g} s.",
                    next_step="Read their logs there, and start again.",
                )
            time.sleep(_POLL_S)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> RedisCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _sees_all(self, node: RedisServer) -> bool:
        try:
            with socket.create_connection((HOST, node.port), timeout=UP_WITHIN_S) as line:
                line.sendall(b"CLUSTER INFO\r\n")
                said = line.recv(65536).decode()
        except OSError:
            return False
        wanted = ("cluster_state:ok", f"cluster_slots_ok:{_HASH_SLOTS}", f"cluster_known_nodes:{len(self.nodes)}")
        return all(words in said for words in wanted)
