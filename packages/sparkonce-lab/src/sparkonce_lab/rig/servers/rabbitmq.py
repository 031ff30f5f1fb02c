"""A RabbitMQ server with its stream plugin, for tests."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce_lab.rig.process import (
    DOWN_WITHIN_S,
    HOST,
    POLL_S,
    Server,
    ServerProcess,
    find_program,
    free_port,
    free_ports,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Use these programs: Debian's command in /usr/sbin switches to another user.
_PROGRAMS = Path("/usr/lib/rabbitmq/bin")
_AMQP_GREETING = b"AMQP\x00\x00\x09\x01"
_ANSWERS_WITHIN_S = 2.0
_CONTROL_WITHIN_S = 60.0
_EPMD_WITHIN_S = 10.0
_NODE_ENV = ("RABBITMQ_", "ERL_")


class RabbitServer(Server):
    """A RabbitMQ node with its own epmd and Erlang cookie, so that it shares nothing with other nodes on this machine.

    The user ``guest`` has the password ``guest`` and all permissions in the virtual host ``/``.

    Args:
        folder: The folder for the node's data. Its path must not contain spaces.
        users: Additional users, by name, with their passwords. They have no permissions.
        permissions: For each user, a virtual host, and name patterns for configure, write and read.
        virtual_hosts: Additional virtual hosts.
        tls: The paths of the authority's certificate, the server's certificate and its key. The node then also listens
            with TLS, at `tls_port` and `stream_tls_port`.

    Attributes:
        stream_port: The port of the stream protocol.
    """

    def __init__(
        self,
        folder: Path,
        *,
        users: Mapping[str, str] | None = None,
        permissions: Sequence[tuple[str, str, str, str, str]] = (),
        virtual_hosts: Sequence[str] = (),
        tls: tuple[Path, Path, Path] | None = None,
    ) -> None:
        port, self.stream_port, self.tls_port, self.stream_tls_port, self._dist_port, self._epmd_port = free_ports(6)
        super().__init__(folder, port)
        hosts = ["/", *virtual_hosts]
        rights = [("guest", host, ".*", ".*", ".*") for host in hosts] + list(permissions)
        self._definitions = {
            "vhosts": [{"name": host} for host in hosts],
            "users": [
                {"name": name, "password": password, "tags": "administrator" if name == "guest" else ""}
                for name, password in {"guest": "guest", **(users or {})}.items()
            ],
            "permissions": [
                {"user": user, "vhost": host, "configure": configure, "write": write, "read": read}
                for user, host, configure, write, read in rights
            ],
        }
        self.settings = {
            "listeners.tcp.1": self.address,
            "stream.listeners.tcp.1": f"{HOST}:{self.stream_port}",
            "stream.advertised_host": HOST,
            "stream.advertised_port": str(self.stream_port),
            "load_definitions": str(self.folder / "definitions.json"),
            "log.console": "true",
            "log.file": "false",
            "disk_free_limit.absolute": "100MB",
            **(self._tls_settings(*tls) if tls else {}),
        }
        self._has_tls = tls is not None
        self._epmd: ServerProcess | None = None

    @staticmethod
    def is_installed() -> bool:
        return _program("rabbitmq-server") is not None and find_program("epmd") is not None

    @property
    def node(self) -> str:
        return f"sparkonce-{self.port}@localhost"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.address}/%2F"

    def initialise(self) -> None:
        # Use a new port at each start, since another process may have taken the previous one.
        self._dist_port = free_port()
        epmd = find_program("epmd")
        if epmd is None or not self.is_installed():
            raise ConfigurationError(
                "rabbitmq-server is not installed.",
                next_step="Install it (Debian, as root: apt install --no-install-recommends rabbitmq-server).",
            )
        (self.folder / "rabbitmq.conf").write_text("".join(f"{name} = {one}\n" for name, one in self.settings.items()))
        (self.folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        (self.folder / "definitions.json").write_text(json.dumps(self._definitions))
        self._start_epmd(epmd)

    def command(self) -> Sequence[str]:
        """Returns the program. Erlang ignores the option that identifies the process."""
        return [str(_program("rabbitmq-server")), "-sparkonce", str(self.folder)]

    def env(self) -> Mapping[str, str]:
        """Returns variables that isolate the node from other nodes and from the machine's settings."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(_NODE_ENV)}
        return {
            **ours,
            "HOME": str(self.folder),  # Erlang's cookie
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_CRASH_DUMP_SECONDS": "0",
            "RUNNING_UNDER_SYSTEMD": "true",  # The script then turns into the server instead of waiting for it.
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {{{HOST.replace('.', ',')}}}",
        }

    def is_up(self) -> bool:
        """Returns True if the node sends a greeting at the AMQP port, and listens at its other ports."""
        try:
            with socket.create_connection((HOST, self.port), timeout=_ANSWERS_WITHIN_S) as client:
                client.sendall(_AMQP_GREETING)
                if not client.recv(8):
                    return False
            for port in (self.stream_port, *((self.tls_port, self.stream_tls_port) if self._has_tls else ())):
                socket.create_connection((HOST, port), timeout=_ANSWERS_WITHIN_S).close()
        except OSError:
            return False
        return True

    def control(self, *words: str) -> str:
        """Runs a ``rabbitmqctl`` command on the node, which takes a second or two, and returns its output."""
        done = subprocess.run(
            [str(_program("rabbitmqctl")), "--quiet", "--node", self.node, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=_CONTROL_WITHIN_S,
            env=self.env(),
        )
        if done.returncode:
            said = (done.stdout + done.stderr)[-2000:]
            raise PreflightError(
                f"rabbitmqctl {words[0]} ended with exit code {done.returncode}: {said}\n",
                next_step="Read the server's log.",
            )
        return done.stdout

    def settle(self) -> None:
        """Persists the list of streams and quorum queues.

        The server itself does so half a second after a declaration. A stream or quorum queue that is declared just
        before a kill would never be served again.
        """
        self.control("eval", "[ok = dets:sync(Table) || Table <- dets:all()].")

    def stop(self, timeout_s: float = DOWN_WITHIN_S) -> bool:
        """Also ends the node's epmd."""
        in_order = super().stop(timeout_s)
        if self._epmd is not None:
            self._epmd.kill()
        return in_order

    def _start_epmd(self, program: Path) -> None:
        """Starts an epmd that ends with this process. If a node finds none, it starts one that stays forever."""
        if self._epmd is not None and self._epmd.exit_code is None:
            return
        marked = self.folder / "epmd"  # The path in the command line identifies this epmd.
        with suppress(FileExistsError):
            marked.symlink_to(program)
        self._epmd = ServerProcess(
            [str(marked), "-port", str(self._epmd_port), "-address", HOST],
            mark=str(marked),
            log=self.log,
            dies_with_parent=True,
        )
        give_up_at = time.monotonic() + _EPMD_WITHIN_S
        while True:
            with suppress(OSError), socket.create_connection((HOST, self._epmd_port), timeout=_ANSWERS_WITHIN_S):
                return
            if self._epmd.exit_code is not None or time.monotonic() >= give_up_at:
                self._epmd.kill()
                raise PreflightError(
                    f"epmd did not come up on port {self._epmd_port} (exit code {self._epmd.exit_code}).",
                    next_step=f"Read {self.log}, and start the server again.",
                )
            time.sleep(POLL_S)

    def _tls_settings(self, authority: Path, certificate: Path, key: Path) -> dict[str, str]:
        return {
            "listeners.ssl.1": f"{HOST}:{self.tls_port}",
            "stream.listeners.ssl.1": f"{HOST}:{self.stream_tls_port}",
            "stream.advertised_tls_port": str(self.stream_tls_port),
            "ssl_options.cacertfile": str(authority),
            "ssl_options.certfile": str(certificate),
            "ssl_options.keyfile": str(key),
            "ssl_options.verify": "verify_none",
        }


def _program(name: str) -> Path | None:
    found = shutil.which(name, path=str(_PROGRAMS))
    return Path(found) if found else find_program(name)
