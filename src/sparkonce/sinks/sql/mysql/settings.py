"""The settings of a connection: those that users may pass to PyMySQL, and those that the sink itself sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkonce.arguments import mapping
from sparkonce.errors import ConfigurationError
from sparkonce.sinks._shared.orphans import parse_line

_TAKEN = frozenset(
    {
        *("host", "port", "unix_socket", "bind_address", "user", "password", "database", "connect_timeout"),
        *("local_infile", "server_public_key", "ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password"),
        *("ssl_verify_cert", "ssl_verify_identity", "ssl_disabled", "read_default_file", "read_default_group"),
    }
)
TLS_FILES = ("ssl_ca", "ssl_cert", "ssl_key")
_NUMBERS = frozenset({"port", "connect_timeout"})
_SWITCHES = frozenset({"local_infile", "ssl_verify_cert", "ssl_verify_identity", "ssl_disabled"})
_OURS: Mapping[str, str] = {
    "charset": "Rows are sent as utf8mb4, whatever the table's character set.",
    "autocommit": "The sink begins and ends its transactions itself.",
    "sql_mode": "The sink needs a strict mode, and sets it.",
    "init_command": "The sink sets up its sessions itself.",
    "read_timeout": "The sink sets the deadlines: see commit_timeout_s and lock_timeout_s.",
    "write_timeout": "The sink sets the deadlines: see commit_timeout_s and lock_timeout_s.",
    "db": "Say database.",
    "passwd": "Say password.",
}


def connection_settings(user: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that are passed to PyMySQL.

    Raises:
        ConfigurationError: If a setting is missing, unknown or managed by the sink. The message names it.
    """
    for name in mapping("settings", user, example="{'host': 'db', 'user': 'etl', 'password': …, 'database': 'shop'}"):
        if name in _OURS:
            raise ConfigurationError(
                f"{name!r} cannot be set for this sink. {_OURS[name]}", next_step="Leave it out.", setting=name
            )
        if name not in _TAKEN:
            raise ConfigurationError(
                f"{name!r} is not a setting of this sink.", next_step=f"Use {', '.join(sorted(_TAKEN))}.", setting=name
            )
    if not user.get("database"):
        raise ConfigurationError(
            "database is missing.", next_step="Name the database of the target table.", setting="database"
        )
    return dict(user)


def parse_settings(text: str) -> dict[str, Any]:
    """Parses settings from one line, see `parse_line` and `read_texts`."""
    return read_texts(parse_line(text))


def read_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    """Parses settings given as strings.

    Raises:
        ConfigurationError: If one is wrong. The message names it.
    """
    found: dict[str, Any] = {}
    for name, value in texts.items():
        if name in _NUMBERS and not value.isdecimal():
            raise ConfigurationError(
                f"{name}={value!r} is not a number.", next_step="Give a whole number.", setting=name
            )
        if name in _SWITCHES and value not in {"true", "false"}:
            raise ConfigurationError(
                f"{name}={value!r} is neither true nor false.", next_step="Give true or false.", setting=name
            )
        found[name] = int(value) if name in _NUMBERS else value == "true" if name in _SWITCHES else value
    return found


def address(user: Mapping[str, Any]) -> str:
    """Returns the server's address for messages, without credentials."""
    if user.get("unix_socket"):
        return str(user["unix_socket"])
    return f"{user.get('host') or 'localhost'}:{user.get('port') or 3306}"
