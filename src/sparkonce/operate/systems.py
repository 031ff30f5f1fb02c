"""Reads an operator's file, which describes systems and the sinks of queries."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sparkonce.arguments import nonempty
from sparkonce.errors import ConfigurationError
from sparkonce.protocol.ownership import short_query

if TYPE_CHECKING:  # A command's help imports this module, and must be fast.
    from sparkonce.protocol.view import LogView
    from sparkonce.sink import Facts, TwoPhaseCommitSink
    from sparkonce.sinks._shared.orphans import Orphan


FILE_VARIABLE = "SPARKONCE_CONFIG"

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class SystemKind(str, Enum):
    """The systems whose open transactions can be listed. Each has a module ``orphans`` in its `package`."""

    FILES = "files"
    KAFKA = "kafka"
    MYSQL = "mysql"
    POSTGRES = "postgres"
    REDIS = "redis"

    @property
    def package(self) -> str:
        """The package of the system's sink."""
        return f"sparkonce.sinks.{'sql.' * (self in (SystemKind.MYSQL, SystemKind.POSTGRES))}{self.value}"

    @property
    def only_setting(self) -> str:
        """The name of the system's setting if it has only one; otherwise empty."""
        return {SystemKind.POSTGRES: "conninfo", SystemKind.REDIS: "url"}.get(self, "")


KINDS = ", ".join(one.value for one in SystemKind)

_CLASSES = {
    SystemKind.FILES: "FilesSink",
    SystemKind.KAFKA: "KafkaSink",
    SystemKind.MYSQL: "MySQLSink",
    SystemKind.POSTGRES: "PostgresSink",
    SystemKind.REDIS: "RedisSink",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSystem:
    """A system in an operator's file. Its settings may contain secrets, so its repr omits them."""

    name: str
    kind: SystemKind
    settings: str | Mapping[str, Any]

    def __repr__(self) -> str:
        return f"NamedSystem(name={self.name!r}, kind={self.kind.value!r})"

    def list_open(self) -> list[Orphan]:
        """Lists sparkonce's open transactions on the system.

        Raises:
            ConfigurationError: If a setting is wrong, or a package is missing.
            SparkonceError: If the system does not respond.
        """
        try:
            module = import_module(f"{self.kind.package}.orphans")
        except ImportError as error:
            raise ConfigurationError(
                f"System {self.name!r} cannot be queried: {error}.",
                next_step=f"pip install 'sparkonce[{self.kind.value}]'",
            ) from error
        found: list[Orphan] = module.list_open(self.settings)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFile:
    """An operator's file.

    Attributes:
        path: The file's path; empty if there is none.
        systems: The systems, by name.
        sinks: The arguments of sinks, including ``system``, by the sinks' names.
        queries: The sinks of single queries, in the same form, by the first 12 digits of the query's id.
    """

    path: str
    systems: Mapping[str, NamedSystem]
    sinks: Mapping[str, Mapping[str, Any]]
    queries: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def of_query(self, short: str) -> OperatorFile:
        """Returns the same file with the sinks of one query, which take precedence over those of all queries."""
        return replace(self, sinks={**self.sinks, **self.queries.get(short, {})})


def read_file(file: str = "", environment: Mapping[str, str] = os.environ) -> OperatorFile:
    """Reads a file.

    The file is YAML. ``systems`` maps names to settings, with ``system`` for the kind if it differs from the name.
    ``sinks`` maps names of sinks to arguments, and ``queries`` maps ids of queries to the sinks of that query. Strings
    may refer to environment variables, as ``${NAME}``. Without a path here or in ``SPARKONCE_CONFIG``, there are no
    systems.

    Raises:
        ConfigurationError: If the file is invalid. The message does not repeat values.
    """
    if path := file or environment.get(FILE_VARIABLE, ""):
        return _of_file(path, environment)
    return OperatorFile(path="", systems={}, sinks={})


def no_system() -> ConfigurationError:
    """Returns the error for a command that has no system to query."""
    return ConfigurationError(
        "No system is named that could be queried.",
        next_step=f"Give --config or {FILE_VARIABLE}, or --system with --settings.",
    )


def known_sinks(view: LogView) -> dict[str, Facts]:
    """Returns the facts about each sink, from the newest run that had the sink."""
    return {name: dict(facts) for run in view.runs for name, facts in run.sinks}


def query_of(view: LogView) -> str:
    """Returns the short id of the log's query; empty if it has none."""
    return short_query(view.newest_run.query) if view.newest_run is not None else ""


def sinks_to_finish(view: LogView) -> set[str]:
    """Returns the sinks of the newest run that may have transactions, or rows waiting in the checkpoint.

    Leaves out sinks below exactly-once, whose slots had rows but no transactions in the newest decision.
    """
    newest, decision = view.newest_run, view.newest_decision
    handles = decision.handles if decision is not None else ()
    below = {handle.sink for handle in handles if handle.rows and not handle.transaction}
    recorded = dict(newest.sinks) if newest is not None else {}
    return {name for name, facts in recorded.items() if dict(facts).keys() & {"prefix", "identity"}} - below


def sinks_of(file: OperatorFile, view: LogView) -> dict[str, TwoPhaseCommitSink]:
    """Returns the query's transactional sinks that a file describes.

    A sink that is not in the file's ``sinks`` uses the system with its own name, if there is one. A sink that the query
    no longer has must be in ``sinks``.

    Raises:
        ConfigurationError: If an argument is wrong, or the file describes a sink that the query never had and lacks one
            that the query has.
    """
    file, known = file.of_query(query_of(view)), known_sinks(view)
    strangers, named = sorted(file.sinks.keys() - known.keys()), file.sinks.keys() | file.systems.keys()
    # If a sink of the query is missing from the file, an unknown name in the file may be a misspelling of it. If no
    # sink is missing, the name belongs to another query.
    if strangers and sinks_to_finish(view) - named:
        raise ConfigurationError(
            f"{file.path!r} has the sinks {strangers}, and the query has {sorted(known)}.",
            next_step="Correct the names, or take out those of other queries.",
        )
    wanted = (file.sinks.keys() & known.keys()) | (sinks_to_finish(view) & file.systems.keys())
    return {name: sink_of(file, name, known[name]) for name in sorted(wanted) if known[name].get("prefix")}


def sink_of(file: OperatorFile, name: str, facts: Facts) -> TwoPhaseCommitSink:
    """Returns one sink of a file.

    Raises:
        ConfigurationError: If an argument is wrong, or the sink's system is not in the file.
    """
    arguments = dict(file.sinks.get(name, {}))
    system = str(arguments.pop("system", name))
    if system not in file.systems:
        raise ConfigurationError(
            f"Sink {name!r} is on the system {system!r}, which the file does not name.",
            next_step=f"Give it `system:` with one of {sorted(file.systems)}.",
        )
    found = file.systems[system]
    kind = _CLASSES[found.kind]
    try:
        cls = getattr(import_module(f"{found.kind.package}.sink"), kind)
        settings, more = _first_argument(found, facts)
        sink: TwoPhaseCommitSink = cls(settings, name=name, **{**more, **_known(name, found.kind, facts), **arguments})
    except (TypeError, ImportError) as error:  # An argument is missing or unknown, or there is no client.
        raise ConfigurationError(
            f"Sink {name!r} cannot be created: {error}.",
            next_step=f"Give it the arguments of {kind}, as the query's program does.",
        ) from None
    return sink


def _first_argument(system: NamedSystem, facts: Facts) -> tuple[Any, dict[str, Any]]:
    """Returns a sink's first argument, and further arguments if these also locate the system."""
    settings = system.settings
    if system.kind is SystemKind.FILES:
        from sparkonce.sinks.files.orphans import options_in

        options = options_in(settings) if isinstance(settings, str) else dict(settings)
        path = nonempty("path", options.pop("path", ""), example="path: /data/out")
        return path, {"store_options": options or None}
    if system.kind is SystemKind.KAFKA and isinstance(settings, str):
        from sparkonce.sinks._shared.orphans import parse_line

        return parse_line(settings), {}
    if system.kind is SystemKind.MYSQL:
        from sparkonce.sinks.sql.mysql.settings import parse_settings

        known = {"database": facts["database"]} if "database" in facts else {}
        return {**known, **(parse_settings(settings) if isinstance(settings, str) else settings)}, {}
    return settings, {}


def _known(name: str, kind: SystemKind, facts: Facts) -> dict[str, Any]:
    """Returns the arguments that are known from the log."""
    prefix = facts.get("prefix")
    if not prefix:
        return {}
    if kind is SystemKind.KAFKA:
        return {"prefix": prefix, "topic": facts.get("topic")}
    if kind is SystemKind.REDIS:
        ttl = {"ledger_ttl_s": int(facts["ledger_ttl_s"])} if "ledger_ttl_s" in facts else {}
        return {"prefix": prefix, "cluster": facts.get("mode") == "cluster", **ttl}
    if kind is SystemKind.FILES:
        return {"manifest": facts.get("manifest", "True") == "True"}
    schema = {"commits_schema": facts["commits"]} if kind is SystemKind.POSTGRES and "commits" in facts else {}
    return {"prefix": prefix.removesuffix(f".{name}"), **schema}


def _of_file(path: str, environment: Mapping[str, str]) -> OperatorFile:
    content = _resolved(path, _parsed(path), environment)
    systems, sinks = (_names(path, content, part) for part in ("systems", "sinks"))
    if not systems:
        raise ConfigurationError(
            f"{path!r} has no systems.", next_step="Write `systems:`, and below it names with their settings."
        )
    queries = _names(path, content, "queries")
    own = {_query(path, one): _names(path, queries, one) for one in queries}
    for name, arguments in (pair for part in (sinks, *own.values()) for pair in part.items()):
        if not isinstance(arguments, dict):
            raise ConfigurationError(
                f"{path!r}: the arguments of sink {name!r} are not a mapping.",
                next_step="Write them below its name, as name: value.",
            )
    named = {name: _system(path, name, settings) for name, settings in systems.items()}
    return OperatorFile(path=path, systems=named, sinks=sinks, queries=own)


def _query(path: str, text: str) -> str:
    try:
        return short_query(str(UUID(text)))
    except ValueError:
        raise ConfigurationError(
            f"{path!r}: {text!r} is not the id of a query.",
            next_step="Write below `queries:` the whole id, which sparkonce checkpoint show names.",
        ) from None


def _parsed(path: str) -> Any:
    import yaml  # Imported here so that the command's help is fast.

    with _refusing(path):
        text = Path(path).read_text("utf-8")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # An invalid date is a ValueError.
        mark = getattr(error, "problem_mark", None)
        raise ConfigurationError(
            f"{path!r} is not YAML" + (f": see line {mark.line + 1}." if mark else "."), next_step="Correct it."
        ) from None


def _names(path: str, content: Any, part: str) -> dict[str, Any]:
    found = content.get(part) if isinstance(content, dict) else None
    if found is not None and not isinstance(found, dict):
        raise ConfigurationError(
            f"{path!r}: `{part}` is not a mapping.", next_step="Write names below it, each with its settings."
        )
    return found or {}


def _system(path: str, name: str, content: Any) -> NamedSystem:
    settings = dict(content) if isinstance(content, dict) else content
    said = str(settings.pop("system", name)) if isinstance(settings, dict) else name
    if said not in [kind.value for kind in SystemKind]:
        raise ConfigurationError(
            f"{path!r}: {name!r} is of the system {said!r}, which is not known.",
            next_step=f"Give it `system:` with one of {KINDS}.",
        )
    kind = SystemKind(said)
    if isinstance(settings, dict) and kind.only_setting:
        if settings.keys() != {kind.only_setting}:
            raise ConfigurationError(
                f"{path!r}: {name!r} has the settings {sorted(settings)}.",
                next_step=f"A {kind.value} has one: {kind.only_setting}.",
            )
        only = settings[kind.only_setting]
        settings = only if isinstance(only, str) else None
    if not settings or not isinstance(settings, str | dict):
        raise ConfigurationError(f"{path!r}: {name!r} has no settings.", next_step="Write them below its name.")
    if isinstance(settings, dict):
        _check_plain(path, name, settings)
        if kind is SystemKind.MYSQL:
            from sparkonce.sinks.sql.mysql.settings import read_texts

            settings |= read_texts({key: value for key, value in settings.items() if isinstance(value, str)})
    return NamedSystem(name=name, kind=kind, settings=settings)


def _check_plain(path: str, name: str, settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if not isinstance(value, str | int | float):
            raise ConfigurationError(
                f"{path!r}: {key!r} of {name!r} is neither a string nor a number.", next_step="Put it in quotes."
            )


def _resolved(path: str, value: Any, environment: Mapping[str, str]) -> Any:
    """Replaces references to environment variables with their values. Names become strings."""
    if isinstance(value, dict):
        return {str(name): _resolved(path, one, environment) for name, one in value.items()}
    if isinstance(value, list):
        return [_resolved(path, one, environment) for one in value]
    if not isinstance(value, str):
        return value
    if missing := [name for name in _REFERENCE.findall(value) if name not in environment]:
        raise ConfigurationError(
            f"{path!r} refers to ${{{missing[0]}}}, which the environment does not have.",
            next_step="Set the variable, or correct its name.",
        )
    return _REFERENCE.sub(lambda found: environment[found[1]], value)


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(f"{path!r} cannot be read: {why}.", next_step="Check --config.") from None
