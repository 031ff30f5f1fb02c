"""The address of a RabbitMQ server, and how to log in, for streams and for queues."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from sparkonce.arguments import flag, nonempty, number, shown, whole_number
from sparkonce.checks import see_files
from sparkonce.errors import ConfigurationError

_PORTS = {False: (5672, 5552), True: (5671, 5551)}
"""The ports of AMQP and of streams, without and with TLS."""

PACKAGES = ("sparkonce_rabbitmq",)
"""The packages that workers need to read from the server and to write to it."""

TLS_FILES = ("ca_file", "certificate_file", "key_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitMQ:
    """A server, or a node of a cluster, and a user.

    Attributes:
        host: The server's name or address.
        port: The AMQP 0-9-1 port, for queues. Defaults to 5672, or 5671 with TLS.
        stream_port: The port of the stream protocol. Defaults to 5552, or 5551 with TLS.
        virtual_host: The virtual host.
        user: The user.
        password: The user's password.
        tls: True to encrypt connections. The server's certificate is then always checked.
        ca_file: The authorities against which the server's certificate is checked. Defaults to the system's.
        certificate_file: The client's own certificate, if the server requires one.
        key_file: The key of that certificate.
        load_balancer: True if the address belongs to a load balancer. To reach a specific node, clients then reconnect
            until they are connected to it.
        timeout_s: How long to wait for a connection or a response, in seconds.

    Raises:
        ConfigurationError: If a setting is wrong. The message names it.
    """

    host: str = "localhost"
    port: int | None = None
    stream_port: int | None = None
    virtual_host: str = "/"
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    tls: bool = False
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    load_balancer: bool = False
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        for setting in ("host", "virtual_host", "user"):
            nonempty(setting, getattr(self, setting), example="a name, such as 'rabbit-1'")
        if not isinstance(self.password, str):
            raise ConfigurationError(
                f"password is a {type(self.password).__name__}.", next_step="Give text.", setting="password"
            )
        for setting in ("port", "stream_port"):
            if getattr(self, setting) is not None:
                whole_number(setting, getattr(self, setting), least=1, most=65535)
        for setting in ("tls", "load_balancer"):
            flag(setting, getattr(self, setting))
        number("timeout_s", self.timeout_s, above=0)
        given = [setting for setting in TLS_FILES if getattr(self, setting) is not None]
        if given and not self.tls:
            raise ConfigurationError(
                f"{given[0]}={getattr(self, given[0])!r} has no effect without tls=True.",
                next_step="Give tls=True, or leave the file out.",
                setting=given[0],
            )
        if (self.key_file is None) != (self.certificate_file is None):
            raise ConfigurationError(
                f"certificate_file={self.certificate_file!r} and key_file={self.key_file!r} belong together.",
                next_step="Give both, or neither.",
                setting="certificate_file",
            )

    @property
    def amqp_address(self) -> tuple[str, int]:
        """The host and port of AMQP 0-9-1."""
        return self.host, self.port or _PORTS[self.tls][0]

    @property
    def stream_address(self) -> tuple[str, int]:
        """The host and port of the stream protocol."""
        return self.host, self.stream_port or _PORTS[self.tls][1]

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """The files that each connecting process must be able to read, as pairs of setting and path."""
        return tuple((setting, path) for setting in TLS_FILES if (path := getattr(self, setting)) is not None)

    def ssl_context(self) -> ssl.SSLContext | None:
        """Creates the context of an encrypted connection; None without TLS. Raises OSError for an unreadable file."""
        if not self.tls:
            return None
        see_files(dict(self.files), TLS_FILES)
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file)
        return context


def checked_server(server: object) -> RabbitMQ:
    """Returns the argument; raises ConfigurationError if it is not a `RabbitMQ` object."""
    if not isinstance(server, RabbitMQ):
        raise ConfigurationError(
            f"server={shown(server)} is not a RabbitMQ.",
            next_step="Give RabbitMQ(host='rabbit', user='job', password='…').",
            setting="server",
        )
    return server
