"""The object that a user passes to ``foreachBatch``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sparkonce.arguments import flag, function
from sparkonce.driver.progress import BatchProgress
from sparkonce.driver.run import Listener, RunDriver
from sparkonce.errors import ConfigurationError, SparkonceError
from sparkonce.jvm import is_connect
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sources.groups import GroupOffsets
from sparkonce.spark.classic import ClassicRun, start_classic
from sparkonce.spark.connect import ConnectRun, check_can_connect, pickled, start_on_server
from sparkonce.spark.query_end import close_at_end, running, warn_if_running_at_exit
from sparkonce.spark.settings import QuerySettings
from sparkonce.spark.show.failures import is_of_a_stop, without_causes
from sparkonce.spark.start.arguments import (
    OutputMode,
    Trigger,
    check_frame,
    check_name,
    new_writer,
    running_query,
    trigger_keywords,
)
from sparkonce.spark.views import DeadLetterSinks, Sinks, warn_of_refused
from sparkonce.watch.listener import QueryListener


class ExactlyOnce:
    """Commits each batch of a query to its sinks exactly once.

    Pass it to ``df.writeStream.foreachBatch(…)``, or call `start`, which does that. One object serves one query. When a
    query that `start` started ends, its connections are closed automatically; after any other query, call `close`.

    Example:
        ```python
        from sparkonce import ExactlyOnce, FilesSink, KafkaSink, await_end

        unit = [KafkaSink({"bootstrap.servers": "broker:9092"}, "orders"), FilesSink("/data/orders")]
        query = ExactlyOnce(unit, "/data/checkpoints/orders").start(orders, trigger="1 second")
        await_end(query)
        ```

    Args:
        sinks: One sink, or several with unique names that commit as one unit. A mapping gives each sink its own view of
            the batch: ``{sink: lambda df: df.where(…), other: None}``. The batch is then computed once, and cached on
            the executors while it is being written.
        checkpoint: The query's checkpoint folder: an absolute path, or a URL of a local disk, HDFS or an object store,
            in the form Spark accepts (``file:``, ``hdfs:``, ``s3a:``, ``abfss:``, ``gs:``). It also holds the decision
            log.
        checkpoint_moved: Set it to True once if the checkpoint folder was moved (not copied) since the last run.
            Otherwise, the query refuses to start in a different folder, because two copies would write the same
            batches twice.
        accept_lost_batches: For each sink's name, the newest batch that its server may have lost, as reported by
            `StaleServerError`. The rows of those batches are not written again. You can leave the setting in place:
            later batches are still checked.
        group_offsets: The consumer groups that get the end offsets of each committed batch.
        outage_patience_s: How long, in seconds, each phase of a batch waits for a system that is unreachable or out of
            space. Then the query stops. No rows are lost: the next start resumes.
        sweep_every_s: The interval, in seconds, at which a background thread looks for transactions left open by losing
            task attempts, even if there is no sign of any.
        rows_per_slot: Groups a batch's partitions into slots of about this many rows read from Kafka. By default, each
            partition is a slot, with one transaction per sink, but a small batch of a simple query is a single slot
            (docs/operations.md). Set it to 1 for one slot per partition in every batch.
        dead_letters: The sink for the rows that another sink's system rejects, each with its reason; or ``{sink:
            other}`` for only some of the sinks. It commits as part of the unit. Without it, such a row stops the query.
        max_refused: The number of rejected rows per batch above which the query stops anyway.
        listener: Called at the start of each phase of a batch, with the phase and the batch's number.
        timeline: Set it to False to write no timeline into the checkpoint. ``sparkonce ui`` shows recent batches from
            it.
        display: True writes a line per batch to standard error. By default, once logging is configured, the lines go
            only to the logger ``sparkonce``.

    Raises:
        ConfigurationError: If a setting is wrong.
    """

    def __init__(
        self,
        sinks: Sinks,
        checkpoint: str | os.PathLike[str],
        *,
        checkpoint_moved: bool = False,
        accept_lost_batches: Mapping[str, int] | None = None,
        group_offsets: GroupOffsets | Sequence[GroupOffsets] = (),
        outage_patience_s: float = 300.0,
        sweep_every_s: float = 10.0,
        rows_per_slot: int | None = None,
        dead_letters: TwoPhaseCommitSink | DeadLetterSinks | None = None,
        max_refused: int = 1000,
        listener: Listener | None = None,
        timeline: bool = True,
        display: bool | None = None,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        self._settings = QuerySettings(
            sinks,
            checkpoint,
            checkpoint_moved=checkpoint_moved,
            accept_lost_batches=accept_lost_batches,
            group_offsets=group_offsets,
            outage_patience_s=outage_patience_s,
            sweep_every_s=sweep_every_s,
            rows_per_slot=rows_per_slot,
            dead_letters=dead_letters,
            max_refused=max_refused,
        )
        self.listener = QueryListener(
            None if listener is None else function("listener", listener, example="a function of (phase, batch)"),
            timeline=flag("timeline", timeline),
            display=None if display is None else flag("display", display),
        )
        # A query that is restarted with the same object begins a new run, which must claim the log again.
        self._run: ClassicRun | ConnectRun | None = None
        self._query: StreamingQuery | None = None
        self._followed = ""

    def __repr__(self) -> str:
        return f"ExactlyOnce({list(self._settings.sinks)}, checkpoint={self.checkpoint!r})"

    @property
    def checkpoint(self) -> str:
        """The checkpoint's location."""
        return self._settings.checkpoint

    @property
    def sinks(self) -> tuple[TwoPhaseCommitSink, ...]:
        """The sinks, in the order they were passed."""
        return tuple(self._settings.sinks.values())

    @property
    def dead_letters(self) -> DeadLetterSinks:
        """The dead-letter sink of each sink that has one."""
        return self._settings.dead_letters

    def start(
        self,
        df: DataFrame,
        *,
        output_mode: OutputMode = "append",
        trigger: Trigger | None = None,
        query_name: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> StreamingQuery:
        """Starts the query with this object's checkpoint.

        Args:
            df: A streaming DataFrame.
            output_mode: ``append``, ``update`` or ``complete``, as for ``writeStream.outputMode``.
            trigger: An interval such as ``"1 second"``, or ``"availableNow"``; or the keyword of
                ``writeStream.trigger`` as a mapping, such as ``{"processingTime": "1 second"}``.
            query_name: The query's name, as for ``writeStream.queryName``.
            options: Additional options for the stream writer.

        Raises:
            ConfigurationError: If an argument is wrong, the checkpoint is not writable, or this object's query is
                already running.
            SchemaError: If a sink rejects the columns.
            LogError: If the checkpoint's decision log cannot be read.
            CheckpointMismatchError: If the folder is not a Spark checkpoint.
            PreflightError: If a server cannot uphold the guarantee, or is not the one that the log knows.
        """
        self._check_is_not_running(df)
        check_name(df, query_name)
        keywords = None if trigger is None else trigger_keywords(trigger)
        check_frame(df)
        if is_connect(df):
            check_can_connect(self.sinks, self._settings.rows_per_slot)
        writer = new_writer(
            df,
            checkpoint=self.checkpoint,
            output_mode=output_mode,
            trigger=keywords,
            query_name=query_name,
            options=options,
        )
        if is_connect(df):
            self._query = start_on_server(writer, df, self._settings, self)
            return self._query
        say = self.listener.display.write
        query = start_classic(writer, df, self._settings, self, say, output_mode=output_mode, trigger=keywords)
        self._query = query
        warn_if_running_at_exit(query)
        self._follow(query, query_name or "")
        return query

    def __call__(self, df: DataFrame, batch: int) -> None:
        """Commits one batch. Called by Spark.

        Raises:
            SparkonceError: If the query must stop.
        """
        try:
            run = self._connect_run(df, batch) if is_connect(df) else self._classic_run(df, batch)
            _check_once_a_batch(run.driver, batch)
            done = run.commit(df, batch)
        except SparkonceError as error:
            if not is_of_a_stop(error):
                self.listener.failed(batch, error)
            elif self._run is not None:
                self.listener.interrupted(self._run.run_id)
            raise without_causes(error) from None
        self.listener.committed(done)
        warn_of_refused(self.dead_letters, done)

    def _connect_run(self, df: DataFrame, batch: int) -> ConnectRun:
        if not isinstance(self._run, ConnectRun):
            check_can_connect(self.sinks, self._settings.rows_per_slot)
            self._run = ConnectRun(df, batch, self._settings, self.listener)
        return self._run

    def _classic_run(self, df: DataFrame, batch: int) -> ClassicRun:
        run, query = running_query(df)
        if not isinstance(self._run, ClassicRun) or self._run.run_id != run:
            former = None if self._run is None else self._run.driver
            self._run = ClassicRun(df, batch, run, query, self._settings, self.listener, former)
            # for example started by another writer than `start`
            if (found := running(df.sparkSession, query)) is not None:
                self._follow(found, found.name or "")
        return self._run

    def progress(self) -> list[BatchProgress]:
        """Returns the newest run's recent batches, oldest first: rows, transactions, and the seconds of each phase."""
        return list(self._run.driver.progress) if self._run is not None else []

    def close(self) -> None:
        """Closes the connections of a query that has ended; its next start opens new ones.

        A query that `start` started closes its connections automatically soon after it ends. A batch in progress
        finishes first. If the last batch may have losing task attempts, for example due to ``spark.speculation``, the
        call waits a few seconds until these have ended, and then aborts their open transactions.
        """
        self._end(self._run)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles only the settings, since the run of a Spark Connect query begins on the server."""
        return pickled(type(self), {**self._arguments, "display": False}, self._settings.sources)

    def _follow(self, query: StreamingQuery, name: str) -> None:
        if self._followed == (run := query.runId):
            return  # its first batch arrived before `start` returned
        self._followed = run
        self.listener.figures.start(query.id, name)
        close_at_end(query, self._close_run)

    def _close_run(self, run_id: str, failure: str) -> None:
        run = self._run
        self._end(run if run is not None and run.run_id == run_id else None, failure)

    def _end(self, run: ClassicRun | ConnectRun | None, failure: str = "") -> None:
        """Ends a run. Meanwhile, another run of the same object may begin."""
        if run is not None:
            run.end()
        self.listener.end_run(run.run_id if run is not None else "", failure)

    def _check_is_not_running(self, df: object) -> None:
        """Rejects a second start, because Spark would silently stop the first query."""
        if (query := self._query) is None:
            return
        if is_connect(query):  # its own server may be gone
            runs = isinstance(df, DataFrame) and any(one.id == query.id for one in df.sparkSession.streams.active)
        else:
            runs = query.isActive
        if runs:
            raise ConfigurationError(
                f"This ExactlyOnce is already running, as query {query.id}: one object, and one checkpoint, serve one "
                "query.",
                next_step="Stop it with query.stop(), then start it again: it resumes after its last batch. A new "
                "checkpoint would write all rows a second time.",
            )


def _check_once_a_batch(run: RunDriver, batch: int) -> None:
    if run.progress and run.progress[-1].batch == batch:
        raise ConfigurationError(
            f"Batch {batch} was given to this ExactlyOnce twice. Its rows are committed, and those of the second "
            "call would not be written.",
            next_step="Call it once in your function. For several sinks or filters give it "
            "{sink: lambda df: df.where('…'), other: None}.",
        )
