"""Tests the history of customers: generates changes, and computes the expected versions."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

Change = tuple[str, str, int]
Version = tuple[str, str, int, int | None]


def make_changes(folder: Path, files: int = 4, changes_per_file: int = 30) -> list[Change]:
    """Writes files of changes in order of time, and returns the changes. Customers may change repeatedly in a file."""
    folder.mkdir(parents=True)
    made = [(f"customer-{at * at % 11}", f"street {at}", at) for at in range(files * changes_per_file)]
    for number in range(files):
        some = made[number * changes_per_file : (number + 1) * changes_per_file]
        lines = [json.dumps({"customer": who, "address": where, "since": since}) for who, where, since in some]
        path = folder / f"{number:04d}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (number, number))  # Spark reads files in the order of their modification times
    return made


def history_of(changes: Iterable[Change]) -> list[Version]:
    """Returns the expected versions, each with its end."""
    of_customer: defaultdict[str, list[Change]] = defaultdict(list)
    for change in changes:
        of_customer[change[0]].append(change)
    return [
        (who, where, since, until)
        for some in of_customer.values()
        for (who, where, since), until in zip(some, [*(one[2] for one in some[1:]), None], strict=True)
    ]
