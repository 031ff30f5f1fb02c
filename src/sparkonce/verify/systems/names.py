"""Systems by name, as they are given on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparkonce.errors import ConfigurationError
from sparkonce.verify.systems.base import System
from sparkonce.verify.systems.files import FilesSystem
from sparkonce.verify.systems.kafka import KafkaSystem
from sparkonce.verify.systems.postgres import PostgresSystem

SYSTEMS: Mapping[str, type[System]] = {one.name: one for one in (KafkaSystem, PostgresSystem, FilesSystem)}
"""The classes, whose `System.build` makes the sink in the query's process."""

_MAKE: Mapping[str, Callable[[str | None], System]] = {
    "kafka": KafkaSystem,
    "postgres": PostgresSystem,
    "files": FilesSystem,
}
_PLACES = {
    "kafka": "kafka=broker:9092",
    "postgres": "'postgres=host=… dbname=… user=…'",
    "files": "files=/data/out",
}


def parse(text: str) -> System:
    """A system as the user names it: ``kafka`` for one of our own, ``kafka=broker:9092`` for the user's.

    Args:
        text: A name, and after ``=`` where the user's own is.

    Raises:
        ConfigurationError: for anything else.
    """
    name, given, place = text.partition("=")
    if name not in _MAKE or (given and not place.strip()):
        raise ConfigurationError(
            f"{text!r} is no system that can be verified",
            next_step=f"give {', '.join(_MAKE)}, or your own as {', '.join(_PLACES.values())}.",
        )
    return _MAKE[name](place.strip() if given else None)
