"""The needs of a sink's writers on the hosts of executors: client libraries, files, reach of the servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNeeds:
    """The needs of a sink's writers on every host of executors, beyond sparkonce and its own dependencies.

    Attributes:
        modules: The modules that the writers import.
        files: The setting and the path of each file that they read.
        addresses: The host and the port of each server that they may connect to first. One of them has to answer.
        packages: The packages of which they need the driver's own build, such as the one that has the sink.
    """

    modules: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    addresses: tuple[tuple[str, int], ...] = ()
    packages: tuple[str, ...] = ()


def files_of(settings: Mapping[str, Any], names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Returns the files that these settings name, for `WorkerNeeds`."""
    return tuple((name, str(settings[name])) for name in names if settings.get(name))


def addresses_of(text: str, port: int) -> tuple[tuple[str, int], ...]:
    """Returns the addresses in a text, for `WorkerNeeds`; none for what is no address.

    Args:
        text: Hosts with or without a port, or URLs, separated by commas.
        port: The port of a host that is given without one.
    """
    found = (_address(part.strip(), port) for part in text.split(","))
    return tuple(address for address in found if address is not None)


def _address(text: str, port: int) -> tuple[str, int] | None:
    try:
        location = urlsplit(f"//{text.rpartition('://')[2]}")  # a protocol of Kafka's is no scheme of a URL
        return (location.hostname, location.port or port) if location.hostname else None
    except ValueError:  # the client refuses it, with its own reason
        return None
