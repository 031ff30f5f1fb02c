"""The user's settings of the database and the table, as plain values that can be pickled and compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkonce.arguments import mapping, missing_package, one_of
from sparkonce.errors import ConfigurationError
from sparkonce.needs import files_of
from sparkonce.protocol.codec import read_json
from sparkonce.sinks._shared.settings import APPEND, CONFLICTS, UPSERT, UpsertRules, seconds

COMMITS_TABLE = "sparkonce_commits"

_IDENTIFIER_LIMIT_BYTES = 63
_PORT = 5432
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile")
_DEFAULTS = {
    "connect_timeout": "10",
    "tcp_user_timeout": "30000",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "application_name": "sparkonce",
}


@dataclass(frozen=True, slots=True)
class Conninfo:
    """libpq's settings. Shows the server's address alone, never a secret.

    Attributes:
        settings: By libpq's names.
    """

    settings: tuple[tuple[str, str], ...] = field(repr=False)

    def __str__(self) -> str:
        known = dict(self.settings)
        parts = [f"{name}={known[name]}" for name in ("host", "hostaddr", "port", "dbname", "user") if name in known]
        return " ".join(parts) or "libpq's defaults"

    def __repr__(self) -> str:
        return f"Conninfo({self})"

    def files(self) -> tuple[tuple[str, str], ...]:
        """Returns the files that the settings name, except ``sslrootcert=system``, which is none."""
        return tuple(each for each in files_of(dict(self.settings), _FILES) if each[1] != "system")

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Returns the servers' addresses, as far as the settings name them; none for sockets in the file system."""
        known = dict(self.settings)
        hosts = (known.get("hostaddr") or known.get("host") or "").split(",")
        ports = (known.get("port") or "").split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        pairs = zip(hosts, ports, strict=False)
        return tuple((host, int(port or _PORT)) for host, port in pairs if host and host[0] not in "/@")

    @classmethod
    def of(cls, conninfo: str | Mapping[str, Any]) -> Conninfo:
        """Reads a connection string, a URI or a mapping.

        Raises:
            ConfigurationError: if psycopg is not installed, or the settings are none of libpq's. They are not
                repeated: one may be a password.
        """
        psycopg = import_psycopg()
        if not isinstance(conninfo, str):
            mapping("conninfo", conninfo, example="'host=… dbname=… user=…', or a mapping of libpq's settings")
        try:
            if isinstance(conninfo, str):
                parameters = psycopg.conninfo.conninfo_to_dict(conninfo)
            else:
                # libpq checks the names of a string only.
                parameters = psycopg.conninfo.conninfo_to_dict(psycopg.conninfo.make_conninfo(**conninfo))
        except psycopg.ProgrammingError:
            raise ConfigurationError(
                "conninfo is not a connection string that libpq understands, or has a setting that it does not know.",
                next_step=_hint(conninfo),
                setting="conninfo",
            ) from None
        encoding = str(parameters.get("client_encoding", "UTF8")).upper().replace("-", "")
        if encoding != "UTF8":
            raise ConfigurationError(
                f"client_encoding={parameters['client_encoding']!r}: rows come from Spark as UTF-8.",
                next_step="Leave client_encoding out; the server converts to its own encoding.",
            )
        whole = {**_DEFAULTS, **parameters, "client_encoding": "UTF8"}
        return cls(tuple(sorted((name, str(value)) for name, value in whole.items() if value is not None)))


def _hint(conninfo: str | Mapping[str, Any]) -> str:
    """Returns the next step for settings that libpq does not take. Their values are not repeated."""
    if isinstance(conninfo, str) and conninfo.startswith("jdbc:"):
        return "Leave 'jdbc:' out: libpq takes the same URL, with user and password in it or as user=… password=…."
    if not isinstance(conninfo, str) and "database" in conninfo:
        return "Call the database dbname: that is libpq's name."
    return "Give 'host=… dbname=… user=…', a postgresql:// URI, or a mapping of libpq's settings."


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The table that rows go to, and the rules for a row whose key is there.

    Attributes:
        schema: The table's schema.
        table: Its name, exactly as the catalog has it.
        mode: ``append`` or ``upsert``.
        keys: The columns of the unique index that decides, for ``upsert``.
        on_conflict: One of `CONFLICTS`, for ``upsert``.
        order_by: The column whose greatest value wins, in the batch and in the table; empty for the last row.
        update_when: The condition under which a row replaces the table's; empty for none.
        delete_when: The condition under which a row deletes the table's; empty for none.
    """

    schema: str
    table: str
    mode: str = APPEND
    keys: tuple[str, ...] = ()
    on_conflict: str = "update"
    order_by: str = ""
    update_when: str = ""
    delete_when: str = ""

    def __str__(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    def check(self) -> None:
        """Raises `ConfigurationError` if the settings contradict each other."""
        one_of("on_conflict", self.on_conflict, CONFLICTS)
        for setting, name in (("schema", self.schema), ("table", self.table)):
            check_identifier(setting, name)
        if self.mode != UPSERT and self.on_conflict != "update":
            raise ConfigurationError(
                f"mode={self.mode!r} with on_conflict={self.on_conflict!r}, which is for upserts.",
                next_step="Leave it out, or set mode='upsert'.",
                setting="on_conflict",
            )

    @property
    def rules(self) -> UpsertRules:
        """The rules for which row of a key counts."""
        return UpsertRules(order_by=self.order_by, update_when=self.update_when, delete_when=self.delete_when)

    def to_text(self, columns: tuple[str, ...]) -> str:
        """Returns it and the columns that are written as text, for the marker of a staged copy."""
        return json.dumps(
            {
                "schema": self.schema,
                "table": self.table,
                "mode": self.mode,
                "keys": self.keys,
                "on_conflict": self.on_conflict,
                "order_by": self.order_by,
                **self.rules.conditions,
                "columns": columns,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> tuple[Target, tuple[str, ...]]:
        """Reads what `to_text` wrote.

        Raises:
            ValueError: if the text is something else.
        """
        try:
            fields = read_json(text.encode())
            columns = tuple(map(str, fields.pop("columns")))
            fields["keys"] = tuple(map(str, fields["keys"]))
            return cls(**fields), columns
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the description of a table: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The time that each kind of request may take, in seconds.

    Attributes:
        slot_s: One slot's transaction on the server, from its first row until it is prepared.
        commit_s: One commit of a whole batch by ``staged``, and one prepare.
        lock_s: Waiting for a lock of another session.
        answer_s: Any other answer of the server.
    """

    slot_s: float = 3600.0
    commit_s: float = 300.0
    lock_s: float = 10.0
    answer_s: float = 15.0

    def check(self) -> None:
        """Raises `ConfigurationError` for a limit that is none."""
        seconds("slot_timeout_s", self.slot_s)
        seconds("commit_timeout_s", self.commit_s)
        seconds("lock_timeout_s", self.lock_s)


def quoted(name: str) -> str:
    """Returns a name in quotes: what a message advises can then be run."""
    return '"' + name.replace('"', '""') + '"'


def check_identifier(setting: str, name: str) -> None:
    """Raises `ConfigurationError` for a name that PostgreSQL would cut off or refuse."""
    if not isinstance(name, str) or not name or "\0" in name or len(name.encode()) > _IDENTIFIER_LIMIT_BYTES:
        raise ConfigurationError(
            f"{setting}={name!r} is no name in PostgreSQL: 1 to {_IDENTIFIER_LIMIT_BYTES} bytes, none of them NUL.",
            next_step="Give schema and table apart, each exactly as the catalog has it, without quotes.",
        )


def import_psycopg() -> Any:
    """Imports the client library.

    Raises:
        ConfigurationError: if it is not installed.
    """
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        raise missing_package("PostgresSink", f"psycopg ({error})", "postgres") from error
    return psycopg
