"""The requirements of a sink's writers on the executors' hosts: client libraries, files, access to servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNeeds:
    """The requirements of a sink's writers on each executor's host, beyond sparkonce and its dependencies.

    Attributes:
        modules: The modules that the writers import.
        files: The files that the writers read, as pairs of a setting and its path.
        addresses: The servers that the writers may connect to first, as pairs of host and port. One of them must
            respond.
        packages: The packages that must be the same build as on the driver, such as the one that contains the sink.
    """

    modules: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    addresses: tuple[tuple[str, int], ...] = ()
    packages: tuple[str, ...] = ()


def files_of(settings: Mapping[str, Any], names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Returns the files named by these settings, for `WorkerNeeds`."""
    return tuple((name, str(settings[name])) for name in names if settings.get(name))


def addresses_of(text: str, port: int) -> tuple[tuple[str, int], ...]:
    """Returns the addresses in a string, for `WorkerNeeds`. Ignores anything that is not an address.

    The string has hosts with or without ports, or URLs, separated by commas.
    """
    found = (_address(part.strip(), port) for part in text.split(","))
    return tuple(address for address in found if address is not None)


def _address(text: str, port: int) -> tuple[str, int] | None:
    try:
        location = urlsplit(f"//{text.rpartition('://')[2]}")  # Kafka's protocols are not URL schemes.
        return (location.hostname, location.port or port) if location.hostname else None
    except ValueError:  # The client will reject the address and give its own reason.
        return None
