"""Makes a query's sinks again from an operator's file, to finish their transactions without the query's program."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from sparkonce.arguments import nonempty
from sparkonce.errors import ConfigurationError
from sparkonce.operate.systems import Kind, NamedSystem, OperatorFile
from sparkonce.protocol.view import LogView
from sparkonce.runs import Facts
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks._shared.orphans import parse_line

_CLASSES = {
    Kind.FILES: "FilesSink",
    Kind.KAFKA: "KafkaSink",
    Kind.MYSQL: "MySQLSink",
    Kind.POSTGRES: "PostgresSink",
    Kind.REDIS: "RedisSink",
}


def known_sinks(view: LogView) -> dict[str, Facts]:
    """Returns what a query's runs knew of each sink, the newest of those that had it."""
    return {name: dict(facts) for run in view.runs for name, facts in run.sinks}


def sinks_to_finish(view: LogView) -> set[str]:
    """Returns the sinks of the newest run that may leave something: transactions, or rows that wait in the checkpoint.

    A sink whose slots had rows and no transaction, in the newest decision, is below exactly-once.
    """
    newest, decision = view.newest_run, view.newest_decision
    handles = decision.handles if decision is not None else ()
    below = {handle.sink for handle in handles if handle.rows and not handle.transaction}
    recorded = dict(newest.sinks) if newest is not None else {}
    return {name for name, facts in recorded.items() if dict(facts).keys() & {"prefix", "identity"}} - below


def sinks_of(file: OperatorFile, view: LogView) -> dict[str, TwoPhaseCommitSink]:
    """Returns the sinks of a query that have transactions, and that a file says how to make.

    A sink that is not in the file's ``sinks`` is the system of its own name, if there is one. One that the query does
    not have any more has to be in ``sinks``.

    Args:
        file: The operator's.
        view: The query's log.

    Raises:
        ConfigurationError: if an argument is wrong, or the file names a sink that the query never had instead of one
            that it has.
    """
    known = known_sinks(view)
    strangers, named = sorted(file.sinks.keys() - known.keys()), file.sinks.keys() | file.systems.keys()
    if strangers and sinks_to_finish(view) - named:  # one of them may be a wrong name; else they are of other queries
        raise ConfigurationError(
            f"{file.path!r} has the sinks {strangers}, and the query has {sorted(known)}.",
            next_step="Correct the names, or take out those of other queries.",
        )
    wanted = (file.sinks.keys() & known.keys()) | (sinks_to_finish(view) & file.systems.keys())
    return {name: sink_of(file, name, known[name]) for name in sorted(wanted) if known[name].get("prefix")}


def sink_of(file: OperatorFile, name: str, facts: Facts) -> TwoPhaseCommitSink:
    """Returns one sink of a file.

    Raises:
        ConfigurationError: if an argument is wrong, or its system is not named.
    """
    arguments = dict(file.sinks.get(name, {}))
    system = str(arguments.pop("system", name))
    if system not in file.systems:
        raise ConfigurationError(
            f"Sink {name!r} is on the system {system!r}, which the file does not name.",
            next_step=f"Give it `system:` with one of {sorted(file.systems)}.",
        )
    return _made(name, file.systems[system], arguments, facts)


def _made(name: str, system: NamedSystem, arguments: Mapping[str, Any], facts: Facts) -> TwoPhaseCommitSink:
    kind = _CLASSES[system.kind]
    try:
        cls = getattr(import_module(f"sparkonce.sinks.{system.kind.value}.sink"), kind)
        settings, more = _first_argument(system, facts)
        sink: TwoPhaseCommitSink = cls(settings, name=name, **{**more, **_known(name, system.kind, facts), **arguments})
    except (TypeError, ImportError) as error:  # a missing or an unknown argument, or no client
        raise ConfigurationError(
            f"Sink {name!r} cannot be made: {error}.",
            next_step=f"Give it the arguments of {kind}, as the query's program does.",
        ) from None
    return sink


def _first_argument(system: NamedSystem, facts: Facts) -> tuple[Any, dict[str, Any]]:
    """Returns a sink's first argument, which says where the system is, and others that do."""
    given = system.settings
    if system.kind is Kind.FILES:
        from sparkonce.sinks.files.orphans import options_in

        options = options_in(given) if isinstance(given, str) else dict(given)
        path = nonempty("path", options.pop("path", ""), example="path: /data/out")
        return path, {"store_options": options or None}
    if system.kind is Kind.KAFKA and isinstance(given, str):
        return parse_line(given), {}
    if system.kind is Kind.MYSQL:
        from sparkonce.sinks.mysql.settings import parse_settings

        known = {"database": facts["database"]} if "database" in facts else {}
        return {**known, **(parse_settings(given) if isinstance(given, str) else given)}, {}
    return given, {}


def _known(name: str, kind: Kind, facts: Facts) -> dict[str, Any]:
    """Returns the arguments that the log knows."""
    prefix = facts.get("prefix")
    if not prefix:
        return {}
    if kind is Kind.KAFKA:
        return {"prefix": prefix, "topic": facts.get("topic")}
    if kind is Kind.REDIS:
        ttl = {"ledger_ttl_s": int(facts["ledger_ttl_s"])} if "ledger_ttl_s" in facts else {}
        return {"prefix": prefix, "cluster": facts.get("mode") == "cluster", **ttl}
    if kind is Kind.FILES:
        return {"manifest": facts.get("manifest", "True") == "True"}
    schema = {"commits_schema": facts["commits"]} if kind is Kind.POSTGRES and "commits" in facts else {}
    return {"prefix": prefix.removesuffix(f".{name}"), **schema}
