"""The address of a Pravega cluster, and how to log in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparkonce.arguments import flag, nonempty
from sparkonce.errors import ConfigurationError

CLIENT_VERSION = "0.13.0"
CLIENT_JAR = f"io.pravega:pravega-client:{CLIENT_VERSION}"
"""The Maven coordinate of Pravega's Java client."""

_ENCRYPTED = ("tls://", "pravegas://")
_SCHEMES = ("tcp://", "pravega://", *_ENCRYPTED)


@dataclass(frozen=True, slots=True)
class Pravega:
    """A cluster and a user.

    Attributes:
        controller: The controller's URI, such as ``tcp://host:9090``, or ``tls://host:9090`` for encrypted connections.
        user: The user, if the cluster requires one.
        password: The user's password.
        trust_store: A PEM file with the authorities against which the servers' certificates are checked. Defaults to
            the authorities of the driver's JVM.
        check_host_name: True if the servers' certificates must match their host names.

    Raises:
        ConfigurationError: If a setting is wrong. The message names it.
    """

    controller: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    trust_store: str | None = None
    check_host_name: bool = True

    def __post_init__(self) -> None:
        nonempty("controller", self.controller, example="tcp://host:9090")
        if not self.controller.startswith(_SCHEMES):
            raise ConfigurationError(
                f"controller={self.controller!r} does not begin with one of {', '.join(_SCHEMES)}.",
                next_step="Give the controller's URI, such as tcp://host:9090.",
                setting="controller",
            )
        if (self.user is None) != (self.password is None):
            given = "password is" if self.user is None else f"user={self.user!r} is"
            raise ConfigurationError(
                f"{given} given without the other of the two.", next_step="Give both, or neither.", setting="password"
            )
        if self.user is not None:
            nonempty("user", self.user, example="a user's name")
            if not isinstance(self.password, str):
                raise ConfigurationError(
                    f"password is a {type(self.password).__name__}.", next_step="Give text.", setting="password"
                )
        flag("check_host_name", self.check_host_name)
        if self.trust_store is not None:
            nonempty("trust_store", self.trust_store, example="/etc/pravega/ca.pem")
            if not self.controller.startswith(_ENCRYPTED):
                raise ConfigurationError(
                    f"trust_store={self.trust_store!r} has no effect with controller={self.controller!r}.",
                    next_step="Give a controller that begins with tls://, or leave trust_store out.",
                    setting="trust_store",
                )

    @classmethod
    def of(cls, controller: str | Pravega) -> Pravega:
        return controller if isinstance(controller, Pravega) else cls(controller)

    def client_config(self, jvm: Any) -> Any:
        made = jvm.io.pravega.client.ClientConfig.builder().controllerURI(jvm.java.net.URI.create(self.controller))
        made = made.validateHostName(self.check_host_name)
        if self.trust_store is not None:
            made = made.trustStore(self.trust_store)
        if self.user is not None:
            credentials = jvm.io.pravega.shared.security.auth.DefaultCredentials(self.password, self.user)
            made = made.credentials(credentials)
        return made.build()
