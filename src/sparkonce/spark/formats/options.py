"""Reads the options of a format: the settings of its sink, and the location of its checkpoint or log.

The options of Spark's own sink have the same names here. All others are named like the settings of our sink. The stores
of checkpoints and logs are opened without a JVM, with settings copied from the session.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from sparkonce.errors import ConfigurationError
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce.sinks.sql.mysql.settings import read_texts
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.sinks.sql.postgres.sink import PostgresSink
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.location import checked_location
from sparkonce.storage.opening import OF_STORES, open_location

_KAFKA = "kafka."

_SHARED = ("guarantee",)
"""Sink settings that no format has, because they need calls that Spark does not make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkFormat:
    """A format.

    Attributes:
        name: The name passed to ``format``.
        kind: The class of its sink.
        translate: Removes Spark's options from the mapping and returns them as sink settings.
        target: The options that determine where rows go. A job with a different target needs a different name.
    """

    name: str
    kind: type[TwoPhaseCommitSink]
    translate: Callable[[dict[str, str]], dict[str, Any]]
    target: tuple[str, ...]

    def sink(self, options: Mapping[str, str]) -> TwoPhaseCommitSink:
        """Creates the sink from these options."""
        left = {name.lower(): value for name, value in options.items()}
        settings = self.translate(left)
        known = inspect.signature(self.kind).parameters
        for name, value in left.items():
            if name not in known or name in _SHARED or name in settings:
                raise ConfigurationError(
                    f"Format {self.name} has no option {name!r}.",
                    next_step=f"See docs/formats.md; of the sink's own settings it takes {', '.join(self.own())}.",
                    setting=name,
                )
            settings[name] = _value(name, value, str(known[name].annotation))
        missing = [
            name for name, one in known.items() if one.default is inspect.Parameter.empty and name not in settings
        ]
        if missing:
            raise ConfigurationError(
                f"Format {self.name} needs {missing[0]}.", next_step="See docs/formats.md.", setting=missing[0]
            )
        return self.kind(**settings)

    def own(self) -> list[str]:
        """Returns the sink's settings that are options with the same name."""
        return [name for name in inspect.signature(self.kind).parameters if name not in _SHARED]

    def target_of(self, options: Mapping[str, str]) -> dict[str, str]:
        """Returns the options that determine where rows go, without a user's name or password."""
        lower = {name.lower(): value for name, value in options.items()}
        return {name: _address(lower[name]) if name == "url" else lower[name] for name in self.target if name in lower}


def _address(url: str) -> str:
    """Returns a URL without user, password and parameters."""
    start, slashes, rest = url.partition("//")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{start}{slashes}{host.rpartition('@')[2]}{slash}{path}"


def _value(name: str, text: str, kind: str) -> Any:
    """Parses a setting from an option's text, by the type that the sink declares."""
    try:
        if kind.startswith("bool"):
            return {"true": True, "false": False}[text.lower()]
        if kind.startswith(("int", "float")):
            return int(text) if kind.startswith("int") else float(text)
        if kind.startswith(("Mapping", "Sequence[tuple")):
            return json.loads(text)
    except (KeyError, ValueError):
        raise ConfigurationError(
            f"{name}={text!r} is not {'true or false' if kind.startswith('bool') else f'a {kind}'}.",
            next_step="Give a mapping or a list as JSON." if "[" in kind else "Correct it.",
            setting=name,
        ) from None
    if "Sequence[str]" in kind:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _kafka(options: dict[str, str]) -> dict[str, Any]:
    settings = {name[len(_KAFKA) :]: options.pop(name) for name in list(options) if name.startswith(_KAFKA)}
    if options.pop("includeheaders", "true").lower() != "true":
        raise ConfigurationError(
            "includeHeaders=false: the column 'headers' is written if there is one.",
            next_step="Leave the option out, and drop the column.",
            setting="includeHeaders",
        )
    return {"settings": settings}


def _postgres(options: dict[str, str]) -> dict[str, Any]:
    schema, dot, table = _taken(options, "dbtable").rpartition(".")
    where = {"table": table.strip('"'), **({"schema": schema.strip('"')} if dot else {})}
    return {"conninfo": _jdbc(options, ("postgresql",), "dbname"), **where}


def _mysql(options: dict[str, str]) -> dict[str, Any]:
    table = _taken(options, "dbtable").strip("`")
    return {"settings": _jdbc(options, ("mysql", "mariadb"), "database", read_texts), "table": table}


def _jdbc(
    options: dict[str, str],
    schemes: tuple[str, ...],
    database: str,
    read: Callable[[dict[str, str]], dict[str, Any]] = dict,
) -> dict[str, Any]:
    """Parses ``jdbc:…//host:port/database?name=value`` with Spark's options ``user`` and ``password``."""
    url = _taken(options, "url")
    try:
        parts = urlsplit(url.removeprefix("jdbc:"))
        found = {"host": parts.hostname, "port": parts.port, database: unquote(parts.path.strip("/"))}
    except ValueError:
        parts, found = urlsplit(""), {}
    if not url.startswith("jdbc:") or parts.scheme not in schemes or not all(found[key] for key in ("host", database)):
        raise ConfigurationError(
            "url is not an address that this format takes.",
            next_step=f"Give jdbc:{schemes[0]}://host:port/database, with user and password as options.",
            setting="url",
        )
    found |= {name: options.pop(name) for name in ("user", "password") if name in options}
    options.pop("driver", None)  # JDBC's driver class, which is not used
    return {name: value for name, value in found.items() if value} | read(dict(parse_qsl(parts.query)))


def _taken(options: dict[str, str], name: str) -> str:
    if name not in options:
        raise ConfigurationError(f"The option {name} is missing.", next_step="See docs/formats.md.", setting=name)
    return options.pop(name)


def _files(options: dict[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {"path": _taken(options, "path")}
    own = {name: options.pop(name) for name in ("header", "delimiter", "sep") if name in options}
    if own:
        flags: Mapping[str, bool] = {"true": True, "false": False}
        settings["options"] = {
            "delimiter" if name == "sep" else name: flags.get(value.lower(), value) for name, value in own.items()
        }
    return settings


FORMATS = (
    SparkFormat(name="sparkonce-kafka", kind=KafkaSink, translate=_kafka, target=("kafka.bootstrap.servers", "topic")),
    SparkFormat(name="sparkonce-postgres", kind=PostgresSink, translate=_postgres, target=("url", "dbtable")),
    SparkFormat(name="sparkonce-mysql", kind=MySQLSink, translate=_mysql, target=("url", "dbtable")),
    SparkFormat(name="sparkonce-redis", kind=RedisSink, translate=lambda _: {}, target=("url", "prefix", "structure")),
    SparkFormat(name="sparkonce-files", kind=FilesSink, translate=_files, target=("path",)),
)
"""All formats. There is none for sinks that need functions or a session (write-ahead, Delta, Iceberg)."""

Settings = Mapping[str, str]
"""Hadoop's settings for stores, by name."""


def session_settings(spark: Any) -> Settings | None:
    """Reads a session's settings for stores; None on Spark Connect, where the server has them."""
    if not hasattr(spark, "_jsparkSession"):
        return None
    from sparkonce.jvm import jvm
    from sparkonce.spark.checkpoints.opening import hadoop_settings

    everything = hadoop_settings(spark).getPropsWithPrefix("")
    told = jvm().com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(everything)
    return {name: value for name, value in json.loads(told).items() if name.startswith(OF_STORES)}


def open_files(setting: str, location: str, settings: Settings | None) -> CheckpointFiles:
    """Returns the files of a folder.

    Raises:
        ConfigurationError: If the location is relative, or its store cannot hold a log or cannot be reached from here.
    """
    checked_location(location)
    try:
        return open_location(location, settings)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{setting}={location!r}: {error.message}", next_step=error.next_step, setting=setting
        ) from None
