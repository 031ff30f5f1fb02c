"""Writers that break a rule of the conformance suite."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from sparkonce.sink import Refused
from sparkonce.sinks.memory.server import TransactionState
from sparkonce.sinks.memory.sink import _Writer


class CloseAborts(_Writer):
    def close(self) -> None:
        self.abort()


class AbortDoesNothing(_Writer):
    def abort(self) -> None:
        pass


class BeginsAtOnce(_Writer):
    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        _Writer.begin(self)

    def begin(self) -> None:
        pass


class AbortNeedsABeginning(_Writer):
    def abort(self) -> None:
        if self._number is None:
            raise RuntimeError("nothing to abort")
        super().abort()


class HandleIsNotPlain(_Writer):
    def prepare(self) -> Mapping[str, str | int]:
        return {name: (value,) for name, value in super().prepare().items()}  # type: ignore[misc]


class DiesWithItsWriter(_Writer):
    def __del__(self) -> None:
        if self._number is not None and self._server.transactions()[self._number] is TransactionState.PREPARED:
            self._server.abort(self._number)


class HandlesWhereNothingIsToFinish(_Writer):
    def prepare(self) -> Mapping[str, str | int]:
        return dict(super().prepare()) or {"number": 0}


class WritesWhatItRefuses(_Writer):
    def offer(self, rows: pa.RecordBatch) -> Refused:
        told = super().offer(rows)
        self.write(rows.take(pa.array(told.rows, pa.int64())))
        return told


class TellsOneRefusedRowOnly(_Writer):
    def offer(self, rows: pa.RecordBatch) -> Refused:
        told = super().offer(rows)
        return Refused(rows=told.rows[:1], reasons=told.reasons[:1])


class GivesOneReason(_Writer):
    def offer(self, rows: pa.RecordBatch) -> Refused:
        told = super().offer(rows)
        return Refused(rows=told.rows, reasons=told.reasons[:1])


class CountsFromTheFirstOffer(_Writer):
    offered = 0

    def offer(self, rows: pa.RecordBatch) -> Refused:
        told, before = super().offer(rows), self.offered
        self.offered += rows.num_rows
        return Refused(rows=[before + row for row in told.rows], reasons=told.reasons)


class CommitsWhatIsAborted(_Writer):
    def abort(self) -> None:
        if self._number is not None:
            self._server.prepare(self._number)
