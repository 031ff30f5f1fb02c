"""A Delta table in a local folder, read as the Delta protocol says, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote
from uuid import uuid4

from sparkonce.testing.systems.base import Witness

if TYPE_CHECKING:
    from sparkonce.rig.proxy import Request

_LOG = "_delta_log"


class DeltaWitness(Witness):
    """A table, and the folder in which its sink's rows wait.

    Args:
        root: The table's folder.
        waiting: The folder of the rows.
    """

    requests: ClassVar[Mapping[str, Mapping[str, Request]]] = {}

    def __init__(self, root: Path, waiting: Path) -> None:
        self.root = root
        self.waiting = waiting

    def create(self, columns: Mapping[str, str]) -> None:
        """Makes the table, with these columns by the names of their types in the protocol."""
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
        schema = json.dumps({"type": "struct", "fields": fields})
        table = {"id": str(uuid4()), "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
        actions: list[dict[str, Any]] = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": {**table, "partitionColumns": [], "configuration": {}, "createdTime": 0}},
        ]
        (self.root / _LOG).mkdir(parents=True)
        (self.root / _LOG / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))

    def actions(self) -> Iterator[dict[str, Any]]:
        """Yields what the versions say, from the first one on. A table of thousands of versions has lost the first."""
        for version in sorted((self.root / _LOG).glob("*.json")):
            yield from map(json.loads, version.read_text().splitlines())

    def files(self) -> list[Path]:
        """Lists the files that make the newest version."""
        found: dict[str, None] = {}
        for action in self.actions():
            if "remove" in action:
                found.pop(action["remove"]["path"], None)
            elif "add" in action:
                found[action["add"]["path"]] = None
        return [self.root / unquote(path) for path in found]

    def labels(self) -> list[str]:
        """Lists the notes of all versions that have one."""
        infos = (action["commitInfo"] for action in self.actions() if "commitInfo" in action)
        return [info["userMetadata"] for info in infos if "userMetadata" in info]

    def left_open(self) -> Sequence[str]:
        """See `Witness.left_open`: rows that wait."""
        states = ("open", "prepared", "started")
        return sorted(path.name for state in states for path in self.waiting.glob(f"*/{state}/*"))

    def close(self) -> None:
        """See `Witness.close`. A folder needs no connection."""
