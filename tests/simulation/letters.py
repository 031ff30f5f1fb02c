"""Rows that a sink refuses, and the sink beside it that takes them, by the product's own executor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from simulation.spark import Copy
from sparkonce.dead_letters import LETTER
from sparkonce.executor import SinkTask, SlotTask, write_slot
from sparkonce.guarantees import Guarantee
from sparkonce.sink import Refused, SinkWriter, WriterContext

if TYPE_CHECKING:
    from simulation.spark import Process
    from simulation.systems import Writer
    from sparkonce.protocol.handles import Handle, Scalar

_ROW, _FINGERPRINT = "row", "fingerprint"


class LettersCopy(Copy):
    """A copy of a task with two sinks."""

    @property
    def version(self) -> int:
        """Returns the half of the rows that is refused."""
        return super().version % 2

    def write(self, process: Process) -> list[tuple[Handle, tuple[int, ...]]]:
        stage, slot = self._stage, self._slot
        refusing, letters = stage.cluster.simulation.config.sinks
        writers: dict[str, _Writer] = {}

        def sink(name: str) -> Any:
            def make(_: WriterContext) -> SinkWriter:
                system = stage.cluster.systems[name]
                asked = system.writer(stage.sinks[name], process, stage.batch, slot, self._number)
                writers[name] = _Writer(asked, stage.batch + self.version)
                return writers[name]

            return SimpleNamespace(name=name, guarantee=Guarantee.EXACTLY_ONCE, writer=make)

        tasks = {
            refusing: {"columns": (_ROW,), "fingerprint": _FINGERPRINT, "dead_letters": letters},
            letters: {"columns": tuple(LETTER.names)},
        }
        task = SlotTask(
            batch=stage.batch,
            sinks=tuple(
                SinkTask(sink=sink(name), owner=owner, **self._with(tasks[name], stage.sinks))
                for name, owner in stage.sinks.items()
            ),
            only=stage.only,
            max_refused=stage.max_refused,
        )
        rows = [pa.record_batch({_ROW: [row], _FINGERPRINT: [stage.batch * 100 + row]}) for row in stage.spread[slot]]
        handles = write_slot(rows, task, slot=slot, copy=f"{self._number}")
        return [(one, tuple(writers[one.sink].rows) if one.sink in writers else ()) for one in handles]

    @staticmethod
    def _with(task: Mapping[str, Any], sinks: Mapping[str, object]) -> Mapping[str, Any]:
        """A replay has the sinks of its decision."""
        return task if task.get("dead_letters") in (None, *sinks) else {**task, "dead_letters": ""}


class _Writer(SinkWriter):
    """A model's writer, by the product's calls.

    Args:
        writer: The writer.
        odd: Every second row is refused, from this one on.
    """

    def __init__(self, writer: Writer, odd: int) -> None:
        self._writer, self._odd = writer, odd
        self.rows: list[int] = []

    def begin(self) -> None:
        self._writer.begin()

    def write(self, rows: pa.RecordBatch) -> None:
        if not self.rows:
            self._writer.write(1)
        found = rows.column(_ROW).to_pylist()
        self.rows += [one if isinstance(one, int) else json.loads(one)[_ROW] for one in found]

    def offer(self, rows: pa.RecordBatch) -> Refused:
        """Takes every second row."""
        numbers = rows.column(_ROW).to_pylist()
        refused = [place for place, number in enumerate(numbers) if (number + self._odd) % 2]
        if len(refused) < len(numbers):
            self.write(rows.take(pa.array([place for place in range(len(numbers)) if place not in refused])))
        return Refused(rows=refused, reasons=["It is odd."] * len(refused))

    def prepare(self) -> Mapping[str, Scalar]:
        self._writer.write(1)
        return self._writer.prepare()

    def abort(self) -> None:
        if self._writer.system.simulation.oracle.violation is None:
            self._writer.abort()

    def close(self) -> None:
        self._writer.close()
