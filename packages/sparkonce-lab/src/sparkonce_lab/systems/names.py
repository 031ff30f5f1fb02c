"""Creates systems from their names on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from sparkonce.errors import ConfigurationError
from sparkonce_lab.systems.base import VerifiedSystem
from sparkonce_lab.systems.delta import DeltaSystem
from sparkonce_lab.systems.files import FilesSystem
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.mysql import MySQLSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.systems.redis import RedisSystem
from sparkonce_lab.systems.s3 import S3System

_MADE: Mapping[str, tuple[type[VerifiedSystem], Callable[[str | None], VerifiedSystem], str]] = {
    "kafka": (KafkaSystem, KafkaSystem, "kafka=broker:9092"),
    "postgres": (PostgresSystem, PostgresSystem, "'postgres=host=… dbname=… user=…'"),
    "files": (FilesSystem, FilesSystem, "files=/data/out"),
    "mysql": (MySQLSystem, MySQLSystem, "'mysql=host=… user=… password=…'"),
    "redis": (RedisSystem, RedisSystem, "redis=redis://host:6379"),
    "s3": (S3System, S3System, "s3=s3://bucket/prefix"),
    "delta": (DeltaSystem, DeltaSystem, "delta=/data/tables"),
}

SYSTEMS: Mapping[str, type[VerifiedSystem]] = {name: made for name, (made, _, _) in _MADE.items()}
"""The classes whose `VerifiedSystem.build` creates the sink in the query's process."""

_BEFORE_AN_ADDRESS = re.compile(r"[^\w-]")
"""Matches the first character after a system's name, which shows that the rest is an address."""


def parse(text: str) -> VerifiedSystem:
    """Creates a system from its name: ``kafka`` to start one, ``kafka=broker:9092`` for the user's.

    Raises:
        ConfigurationError: For any other text. The message omits the part after ``=``, which may contain a password.
    """
    name, equals, address = text.partition("=")
    if name not in _MADE or (equals and not address.strip()):
        examples = ", ".join(example for _, _, example in _MADE.values())
        shown = _BEFORE_AN_ADDRESS.split(text)[0]
        raise ConfigurationError(
            f"--system {shown}: names no location" if name in _MADE else f"--system {shown}: there is no such system",
            next_step=f"Give {', '.join(_MADE)}, or your own as {examples}.",
        )
    _, make, _ = _MADE[name]
    return make(address.strip() if equals else None)
