"""A Delta table in a local folder, read according to the Delta protocol, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from sparkonce_lab.rig.kafka.jars import spark_delta_jars
from sparkonce_lab.systems.files import FilesSystem

if TYPE_CHECKING:
    from sparkonce.protocol.handles import Handle
    from sparkonce.sink import TwoPhaseCommitSink

_LOG = "_delta_log"
_COLUMNS = ("kind string", *(f"{name} long" for name in ("key", "number", "amount", "rows", "batch")))
_WAITING = ("open", "prepared", "started")


class DeltaSystem(FilesSystem):
    """A local table, on a disk that can be filled if mounting is allowed, or a new table in the user's folder.

    Rows are appended, so a batch that is written twice occurs twice. See `FilesSystem` for the arguments.
    """

    name = "delta"
    session: Mapping[str, str] = {
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }

    @property
    def root(self) -> Path:
        return self.folder / "table"

    @property
    def waiting(self) -> Path:
        return self.folder / "rows"

    def jars(self) -> Sequence[Path]:
        return spark_delta_jars()

    def make(self, columns: Sequence[str]) -> None:
        """Creates a table with columns such as ``number long``, whose types have the names of the Delta protocol."""
        fields = [dict(zip(("name", "type"), column.split(), strict=True)) for column in columns or _COLUMNS]
        described = [{**field, "nullable": True, "metadata": {}} for field in fields]
        schema = json.dumps({"type": "struct", "fields": described})
        table = {"id": str(uuid4()), "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
        actions: list[dict[str, Any]] = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": {**table, "partitionColumns": [], "configuration": {}, "createdTime": 0}},
        ]
        (self.root / _LOG).mkdir(parents=True)
        (self.root / _LOG / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))

    def arguments(self, **options: Any) -> dict[str, Any]:
        return {"path": str(self.root), "folder": str(self.waiting), **options}

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> TwoPhaseCommitSink:
        from sparkonce.sinks.tables.delta import DeltaSink

        return DeltaSink(**arguments)

    def expire(self, handle: Handle) -> bool:
        """Deletes a transaction's waiting rows."""
        found = [path for path in self.waiting.rglob(str(handle["name"])) if path.parent.name in _WAITING]
        for path in found:
            path.unlink()
        return bool(found)

    def published(self) -> Sequence[Path]:
        """Lists the files of the newest version. Does not work once the first versions were deleted."""
        found: dict[str, None] = {}
        for version in sorted((self.root / _LOG).glob("*.json")):
            for action in map(json.loads, version.read_text().splitlines()):
                if "remove" in action:
                    found.pop(action["remove"]["path"], None)
                elif "add" in action:
                    found[action["add"]["path"]] = None
        return [self.root / unquote(path) for path in found]

    def left_open(self) -> Sequence[str]:
        """Returns waiting rows."""
        return sorted(path.name for state in _WAITING for path in self.waiting.glob(f"*/{state}/*"))
