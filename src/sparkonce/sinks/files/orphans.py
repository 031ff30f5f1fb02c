"""Lists the files that sparkonce has staged in a folder but not published, for operators. Read-only."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from sparkonce.arguments import nonempty
from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks._shared.orphans import Orphan, parse_line, run_of
from sparkonce.sinks.files.locations import local_folder, open_store, scheme_of


def options_in(line: str) -> dict[str, Any]:
    """Parses options from one line: true and false as booleans, and values of names that end in ``_s`` as seconds."""
    found: dict[str, Any] = {}
    for name, value in parse_line(line).items():
        try:
            seconds = float(value) if name.endswith("_s") else None
        except ValueError:
            raise ConfigurationError(
                f"{name}={value!r} is not a number.", next_step="Give seconds.", setting=name
            ) from None
        found[name] = value == "true" if value in {"true", "false"} else value if seconds is None else seconds
    return found


def list_open(settings: str | Mapping[str, Any]) -> list[Orphan]:
    """Lists all transactions with staged files in one folder, by query and batch. Stores report no age of a file.

    Args:
        settings: ``path`` and the options of the store, as a mapping or in one line.

    Raises:
        ConfigurationError: If the path is missing or a setting is unknown.
        PreflightError: If there is no such folder on this machine.
        UnknownOutcomeError: If the store does not respond.
    """
    options = options_in(settings) if isinstance(settings, str) else dict(settings)
    path = nonempty("path", options.pop("path", ""), example="path=…, and the options of the store")
    if scheme_of(path) == "file" and not local_folder(path).is_dir():
        raise PreflightError(
            f"path={path!r}: there is no such folder on this machine.",
            next_step="Correct the path, or run the command where the disk is mounted.",
        )
    staged: dict[TransactionName, list[str]] = {}
    with closing(open_store(path, options)) as store:
        for one in store.list_staged():
            staged.setdefault(one.name, []).append(str(one.fields.get("path") or one.fields.get("held", "")))
    return [
        Orphan(
            kind="staged",
            name=str(name),
            query=name.query,
            run=run_of(name.token),
            batch=name.batch,
            slot=name.slot,
            copy=name.copy,
            age_s=-1,
            holds=tuple(sorted(paths)),
        )
        for name, paths in sorted(staged.items(), key=lambda pair: (pair[0].query, pair[0].batch, pair[0].slot))
    ]
