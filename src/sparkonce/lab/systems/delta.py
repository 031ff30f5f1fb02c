"""A Delta table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.lab.systems.files import FilesSystem
from sparkonce.rig.kafka.jars import spark_delta_jars
from sparkonce.testing.systems.delta import DeltaWitness

if TYPE_CHECKING:
    from sparkonce.sink import TwoPhaseCommitSink

_COLUMNS = {"kind": "string", **dict.fromkeys(("key", "number", "amount", "rows", "batch"), "long")}


class DeltaSystem(FilesSystem):
    """A table of our own, on a disk that can be filled where mounting is allowed; or a new one in the user's folder.

    Its rows are appended: a batch that is written twice is there twice. See `FilesSystem` for the arguments.
    """

    name = "delta"
    session: Mapping[str, str] = {
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }

    def jars(self) -> Sequence[Path]:
        """See `System.jars`."""
        return spark_delta_jars()

    def sink_settings(self) -> Mapping[str, Any]:
        """See `System.sink_settings`."""
        witness = self._witness()
        return {"path": str(witness.root), "folder": str(witness.waiting)}

    @staticmethod
    def build(settings: Mapping[str, Any]) -> TwoPhaseCommitSink:
        """See `System.build`."""
        from sparkonce.spark.tables.delta import DeltaSink

        return DeltaSink(settings["path"], folder=settings["folder"], name=DeltaSystem.name)

    def left_open(self) -> Sequence[str]:
        """See `System.left_open`."""
        return self._witness().left_open()

    def _make(self) -> None:
        self._witness().create(_COLUMNS)

    def _files(self) -> Sequence[Path]:
        return self._witness().files()

    def _witness(self) -> DeltaWitness:
        return DeltaWitness(self.folder / "table", self.folder / "rows")
