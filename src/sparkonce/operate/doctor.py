"""Runs the checks of a query's start for an operator: servers, permissions, limits, checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from sparkonce.errors import SparkonceError
from sparkonce.operate.checkpoint import Check, check_checkpoint, read_log_of
from sparkonce.operate.systems import NamedSystem, OperatorFile, known_sinks, query_of, sink_of, sinks_to_finish
from sparkonce.protocol.view import LogView
from sparkonce.sink import Facts
from sparkonce.storage.files import CheckpointFiles

_NOBODY = "0" * 12
"""The short id that no query has."""
_IF_NEW = "Give the query's checkpoint, or --new for a query that has never started."


def check_servers(
    file: OperatorFile, files: CheckpointFiles | None, *, moved: bool = False, is_new: bool = False
) -> Iterator[Check]:
    """Checks each system in a file, and runs the checks of a start for each sink.

    The checks of a sink use the facts about it in the query's log. A sink without such facts is checked only with
    ``is_new``, since the checks of a first start create marker tables, which would hide the loss of existing ones.

    Args:
        file: The operator's file.
        files: The query's checkpoint, which is also checked; None if there is none.
        moved: True to check a start with ``checkpoint_moved=True``.
        is_new: True to check sinks as a first start does, if there is no log.

    Raises:
        ConfigurationError: If the folder is not a checkpoint.
        OSError: If the checkpoint's store cannot be read.
    """
    view, is_refused = LogView(), False
    if files is not None:
        checks = check_checkpoint(files, moved=moved)
        yield from checks
        is_refused = any(one.ok is False for one in checks)
        if not is_refused:
            view = read_log_of(files)[1]
    yield from map(_check_system, file.systems.values())
    known, to_finish = known_sinks(view), sinks_to_finish(view)
    query = query_of(view)
    file = file.of_query(query)
    for name in dict.fromkeys([*file.sinks, *sorted(to_finish)]):
        shown = f"sink {name}"
        if is_refused:
            yield Check(name=shown, ok=None, says="The checkpoint is refused, so the log's facts about it are unknown.")
        elif name in known and name not in file.sinks and name not in file.systems:
            yield Check(name=shown, ok=None, says="The file does not describe it.")
        elif name in known:
            yield _check_sink(file, name, query, known[name])
        elif view.newest_run is not None:
            is_wrong = bool(to_finish - file.sinks.keys() - file.systems.keys())
            says = "The query never had it" + (
                "." if is_wrong else ": it belongs to another query, or its name is wrong."
            )
            step = "Correct its name in the file." if is_wrong else ""
            yield Check(name=shown, ok=False if is_wrong else None, says=says, next_step=step)
        elif is_new:
            yield _check_sink(file, name, _NOBODY, None)
        else:
            yield Check(name=shown, ok=None, says="No log knows it.", next_step=_IF_NEW)


def _check_system(system: NamedSystem) -> Check:
    name = f"system {system.name}"
    try:
        count = len(system.list_open())
    except SparkonceError as error:
        return Check.failed(name, error)
    says = "1 transaction of sparkonce is open" if count == 1 else f"{count:,} transactions of sparkonce are open"
    return Check(name=name, ok=True, says=f"It responds; {says}.")


def _check_sink(file: OperatorFile, name: str, query: str, recorded: Facts | None) -> Check:
    shown = f"sink {name}"
    try:
        facts = sink_of(file, name, recorded or {}).preflight(query, recorded)
    except SparkonceError as error:
        return Check.failed(shown, error)
    said = ", ".join(f"{key}={value}" for key, value in facts.items())
    return Check(name=shown, ok=True, says=f"A start accepts it{': ' if said else ''}{said}.")
