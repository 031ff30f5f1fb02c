"""The sink's settings, in PyMySQL's names, and what of them is ours to set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkonce.errors import ConfigurationError

_TAKEN = frozenset(
    {
        "host",
        "port",
        "unix_socket",
        "bind_address",
        "user",
        "password",
        "database",
        "connect_timeout",
        "local_infile",
        "server_public_key",
        "ssl_ca",
        "ssl_cert",
        "ssl_key",
        "ssl_key_password",
        "ssl_verify_cert",
        "ssl_verify_identity",
        "ssl_disabled",
        "read_default_file",
        "read_default_group",
    }
)
_OURS: Mapping[str, str] = {
    "charset": "Rows travel as utf8mb4 whatever the table's character set.",
    "autocommit": "The sink begins and ends its transactions itself.",
    "sql_mode": "The sink needs a strict mode, and sets it.",
    "init_command": "The sink sets up its sessions itself.",
    "read_timeout": "The sink sets the deadlines: see commit_timeout_s and lock_timeout_s.",
    "write_timeout": "The sink sets the deadlines: see commit_timeout_s and lock_timeout_s.",
    "db": "Say database.",
    "passwd": "Say password.",
}


def connection_settings(user: Mapping[str, Any]) -> dict[str, Any]:
    """What PyMySQL is given.

    Args:
        user: The user's settings, in PyMySQL's names.

    Raises:
        ConfigurationError: naming the setting that is missing, unknown or the sink's own.
    """
    for name in user:
        if name in _OURS:
            raise ConfigurationError(
                f"{name!r} cannot be set for this sink. {_OURS[name]}", next_step="leave it out.", setting=name
            )
        if name not in _TAKEN:
            raise ConfigurationError(
                f"{name!r} is no setting of this sink.", next_step=f"use {', '.join(sorted(_TAKEN))}.", setting=name
            )
    if not user.get("database"):
        raise ConfigurationError(
            "database is missing.", next_step="name the database of the target table.", setting="database"
        )
    return dict(user)


def place(user: Mapping[str, Any]) -> str:
    """Where the server is, for messages: never with credentials."""
    if user.get("unix_socket"):
        return str(user["unix_socket"])
    return f"{user.get('host') or 'localhost'}:{user.get('port') or 3306}"
