"""The settings of a connection, the names of XA branches, staging tables and locks, and a staging table's comment."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkonce.arguments import mapping
from sparkonce.errors import ConfigurationError
from sparkonce.protocol.codec import read_json
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks._shared.orphans import parse_line
from sparkonce.sinks.sql.settings import APPEND, UPSERT, Target, UpsertRules

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

FORMAT_ID = 0x53504F31
"""``SPO1``: the formatID of every xid that sparkonce creates."""

PREFIX_LIMIT_BYTES = 64
"""The maximum size of the prefix: it is the xid's ``bqual``, which both servers limit to 64 bytes."""

_GTRID = re.compile(
    rb"(?P<query>[0-9a-f]{12})\.(?P<position>0|[1-9][0-9]{0,18})-(?P<nonce>[0-9a-f]{8})\.(?P<copy>[0-9a-f]{12})"
)
_FOUR_BYTES = re.compile("[\U00010000-\U0010ffff]")
_STAGE = re.compile(r"sparkonce_stage_(?P<copy>[0-9a-f]{12})")


def connection_settings(user: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that are passed to PyMySQL, if the user may set all of them."""
    for name in mapping("settings", user, example="{'host': 'db', 'user': 'etl', 'password': …, 'database': 'shop'}"):
        if name in _OURS:
            what = f"{name!r} cannot be set for this sink. {_OURS[name]}"
            raise ConfigurationError(what, next_step="Leave it out.", setting=name)
        if name not in _TAKEN:
            what = f"{name!r} is not a setting of this sink."
            raise ConfigurationError(what, next_step=f"Use {', '.join(sorted(_TAKEN))}.", setting=name)
    if not user.get("database"):
        what = "database is missing."
        raise ConfigurationError(what, next_step="Name the database of the target table.", setting="database")
    return dict(user)


def parse_settings(text: str) -> dict[str, Any]:
    """Parses settings from one line, see `parse_line` and `read_texts`."""
    return read_texts(parse_line(text))


def read_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    """Parses settings given as strings. Raises `ConfigurationError` for a wrong one."""
    found: dict[str, Any] = {}
    for name, value in texts.items():
        if name in _NUMBERS and not value.isdecimal():
            what = f"{name}={value!r} is not a number."
            raise ConfigurationError(what, next_step="Give a whole number.", setting=name)
        if name in _SWITCHES and value not in {"true", "false"}:
            what = f"{name}={value!r} is neither true nor false."
            raise ConfigurationError(what, next_step="Give true or false.", setting=name)
        found[name] = int(value) if name in _NUMBERS else value == "true" if name in _SWITCHES else value
    return found


def address(user: Mapping[str, Any]) -> str:
    """Returns the server's address for messages, without credentials."""
    if user.get("unix_socket"):
        return str(user["unix_socket"])
    return f"{user.get('host') or 'localhost'}:{user.get('port') or 3306}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """The id of a task attempt's branch of an XA transaction.

    ``gtrid`` is ``<query>.<position>-<nonce>.<copy>``, at most 54 of 64 bytes, and ``bqual`` is the prefix.
    """

    prefix: str
    query: str
    token: Token
    copy: str

    @classmethod
    def of(cls, name: TransactionName) -> Xid:
        """Returns the xid of a transaction. It omits batch and slot, because the copy id alone is unique."""
        return cls(prefix=name.prefix, query=name.query, token=name.token, copy=name.copy)

    @classmethod
    def parse(cls, format_id: int, gtrid_length: int, bqual_length: int, data: bytes | str) -> Xid | None:
        """Parses a row of ``XA RECOVER``, in bytes or hexadecimal digits. Returns None for a foreign xid."""
        try:
            whole = bytes.fromhex(data.removeprefix("0x")) if isinstance(data, str) else data
            gtrid, prefix = whole[:gtrid_length], whole[gtrid_length:].decode()
        except ValueError:
            return None
        match = _GTRID.fullmatch(gtrid)
        if format_id != FORMAT_ID or match is None or not 0 < bqual_length <= PREFIX_LIMIT_BYTES:
            return None
        if len(whole) != gtrid_length + bqual_length:
            return None
        token = Token(int(match["position"]), match["nonce"].decode())
        return cls(prefix=prefix, query=match["query"].decode(), token=token, copy=match["copy"].decode())

    @property
    def gtrid(self) -> bytes:
        return f"{self.query}.{self.token.position}-{self.token.nonce}.{self.copy}".encode()

    @property
    def bqual(self) -> bytes:
        return self.prefix.encode()

    def __str__(self) -> str:
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{FORMAT_ID}"

    def named(self) -> TransactionName:
        """Returns a transaction name with this xid. Batch and slot are unknown, and are therefore 0."""
        return TransactionName(prefix=self.prefix, query=self.query, token=self.token, batch=0, slot=0, copy=self.copy)


def stage_table(copy: str) -> str:
    """Returns the name of a task attempt's staging table.

    Table names are limited to 64 bytes, so the transaction's name is in the table's comment.
    """
    return f"sparkonce_stage_{copy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingTable:
    """The contents of a staging table's name and comment."""

    name: TransactionName
    begun_ms: int
    target: Target

    def comment(self) -> str:
        fields = {
            "sparkonce": str(self.name),
            "begun_ms": self.begun_ms,
            "table": self.target.table,
            "keys": self.target.keys,
            **self.target.rules.to_dict(),
        }
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        # MySQL stores comments with at most three bytes per character and turns longer characters into question marks.
        return _FOUR_BYTES.sub(lambda found: json.dumps(found[0])[1:-1], text)

    @classmethod
    def parse(cls, table: str, comment: str) -> StagingTable | None:
        """Parses a staging table's name and comment. Returns None if it is not one of sparkonce's."""
        match = _STAGE.fullmatch(table)
        try:
            fields = read_json(comment.encode()) if match else None
        except ValueError:
            return None
        if match is None or not isinstance(fields, dict):
            return None
        name = TransactionName.parse(str(fields.get("sparkonce", "")))
        begun, keys = fields.get("begun_ms"), fields.get("keys")
        if name is None or name.copy != match["copy"] or not isinstance(begun, int) or not isinstance(keys, list):
            return None
        rules = UpsertRules(**{setting: str(fields[setting]) for setting in UpsertRules.SETTINGS if setting in fields})
        target = Target(table=str(fields.get("table")), keys=tuple(map(str, keys)), rules=rules)
        return cls(name=name, begun_ms=begun, target=replace(target, mode=UPSERT if keys else APPEND))


def lock_name(copy: str) -> str:
    """Returns the name of the lock (``GET_LOCK``) that a writer's connection holds for as long as it exists."""
    return f"sparkonce:{copy}"


def quote(identifier: str) -> str:
    """Returns an identifier quoted for a statement."""
    return "`" + identifier.replace("`", "``") + "`"


def plain_literal(text: str) -> str:
    """Returns a string literal for a statement that accepts no expression there. It fits the sink's sql_mode."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
