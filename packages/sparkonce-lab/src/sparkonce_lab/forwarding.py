"""A sink that wraps another one: everything is forwarded, and a test overrides what it wants to watch or break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkonce.sink import SinkCommitter, SinkWriter, TwoPhaseCommitSink
from sparkonce.storage.files import CheckpointFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from sparkonce.guarantees import Guarantee
    from sparkonce.needs import WorkerNeeds
    from sparkonce.protocol.handles import Finished, Handle
    from sparkonce.protocol.traces import Trace
    from sparkonce.sink import Facts, Monitor, Owner, Refused, WriterContext


class ForwardingSink(TwoPhaseCommitSink):
    """Forwards every call to another sink, whose name and guarantee it has.

    Args:
        real: The other sink.
    """

    def __init__(self, real: TwoPhaseCommitSink) -> None:
        super().__init__(real.name, real.guarantee)
        self._real = real

    @property
    def promise(self) -> Guarantee:
        """See `TwoPhaseCommitSink.promise`."""
        return self._real.promise

    @property
    def tells_refused(self) -> bool:
        """See `TwoPhaseCommitSink.tells_refused`."""
        return self._real.tells_refused

    @property
    def takes_dead_letters(self) -> bool:
        """See `TwoPhaseCommitSink.takes_dead_letters`."""
        return self._real.takes_dead_letters

    @property
    def writes_with_session(self) -> bool:
        """See `TwoPhaseCommitSink.writes_with_session`."""
        return self._real.writes_with_session

    @property
    def target_name(self) -> str | None:
        """See `TwoPhaseCommitSink.target_name`."""
        return self._real.target_name

    @property
    def kafka_settings(self) -> Mapping[str, Any] | None:
        """See `TwoPhaseCommitSink.kafka_settings`."""
        return self._real.kafka_settings

    def partitions(self) -> int | None:
        """See `TwoPhaseCommitSink.partitions`."""
        return self._real.partitions()

    def checked(self, rows: DataFrame, mark: str = "") -> DataFrame:
        """See `TwoPhaseCommitSink.checked`."""
        return self._real.checked(rows, mark)

    def conditions(self) -> Sequence[str]:
        """See `TwoPhaseCommitSink.conditions`."""
        return self._real.conditions()

    def use_folders(self, open_folder: Callable[[str], CheckpointFiles]) -> None:
        """See `TwoPhaseCommitSink.use_folders`."""
        self._real.use_folders(open_folder)

    def use_checkpoint(self, files: CheckpointFiles) -> None:
        """See `TwoPhaseCommitSink.use_checkpoint`."""
        self._real.use_checkpoint(files)

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """See `TwoPhaseCommitSink.columns`."""
        return self._real.columns(schema)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        """See `TwoPhaseCommitSink.preflight`."""
        return self._real.preflight(query, recorded)

    def transaction_timeout_s(self, facts: Facts) -> float | None:
        """See `TwoPhaseCommitSink.transaction_timeout_s`."""
        return self._real.transaction_timeout_s(facts)

    def longest_lived(self, facts: Facts) -> Facts:
        """See `TwoPhaseCommitSink.longest_lived`."""
        return self._real.longest_lived(facts)

    def monitor(self, query: str, facts: Facts) -> Monitor | None:
        """See `TwoPhaseCommitSink.monitor`."""
        return self._real.monitor(query, facts)

    def worker_needs(self) -> WorkerNeeds:
        """See `TwoPhaseCommitSink.worker_needs`."""
        return self._real.worker_needs()

    def writer(self, context: WriterContext) -> SinkWriter:
        """See `TwoPhaseCommitSink.writer`."""
        return self._real.writer(context)

    def committer(self) -> SinkCommitter:
        """See `TwoPhaseCommitSink.committer`."""
        return self._real.committer()


class ForwardingWriter(SinkWriter):
    """Forwards every call to another writer.

    Args:
        real: The other writer.
    """

    def __init__(self, real: SinkWriter) -> None:
        self._real = real

    def begin(self) -> None:
        """See `SinkWriter.begin`."""
        self._real.begin()

    def write(self, rows: pa.RecordBatch) -> None:
        """See `SinkWriter.write`."""
        self._real.write(rows)

    def offer(self, rows: pa.RecordBatch) -> Refused:
        """See `SinkWriter.offer`."""
        return self._real.offer(rows)

    def prepare(self) -> Mapping[str, str | int]:
        """See `SinkWriter.prepare`."""
        return self._real.prepare()

    def abort(self) -> None:
        """See `SinkWriter.abort`."""
        self._real.abort()

    def close(self) -> None:
        """See `SinkWriter.close`."""
        self._real.close()


class ForwardingCommitter(SinkCommitter):
    """Forwards every call to another committer.

    Args:
        real: The other committer.
    """

    def __init__(self, real: SinkCommitter) -> None:
        self._real = real

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """See `SinkCommitter.commit`."""
        return self._real.commit(handles)

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """See `SinkCommitter.abort`."""
        return self._real.abort(handles)

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """See `SinkCommitter.list_lingering`."""
        return self._real.list_lingering(owners)

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        """See `SinkCommitter.list_traces`."""
        return self._real.list_traces(query, facts)

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """See `SinkCommitter.missing`."""
        return self._real.missing(handles)

    def begun_ms(self, handles: Sequence[Handle]) -> Sequence[int | None]:
        """See `SinkCommitter.begun_ms`."""
        return self._real.begun_ms(handles)

    def before_decision(self, facts: Facts) -> str:
        """See `SinkCommitter.before_decision`."""
        return self._real.before_decision(facts)

    def check_prepared(self, handles: Sequence[Handle]) -> str:
        """See `SinkCommitter.check_prepared`."""
        return self._real.check_prepared(handles)

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """See `SinkCommitter.conclude`."""
        self._real.conclude(batch, handles)

    def close(self) -> None:
        """See `SinkCommitter.close`."""
        self._real.close()
