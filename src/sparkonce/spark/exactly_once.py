"""The object that a user gives to ``foreachBatch``."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sparkonce.arguments import flag, function, number, whole_number
from sparkonce.driver.outage import Outage, Timing
from sparkonce.driver.progress import BatchProgress
from sparkonce.driver.run import Listener, RunDriver
from sparkonce.driver.start import ResumePoint, check_log, mend, read_log, recorded_facts
from sparkonce.driver.stops import stop_error
from sparkonce.errors import ConfigurationError, SparkonceError
from sparkonce.guarantees import Guarantee
from sparkonce.log import DecisionLog
from sparkonce.protocol.events import BatchAsked
from sparkonce.protocol.ownership import short_query
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.source import Source, SourceFacts, all_registered
from sparkonce.sources.groups import GroupOffsets, GroupReporter
from sparkonce.sources.offsets import rows_read
from sparkonce.spark.arrow_batches import ArrowBatches
from sparkonce.spark.checkpoints.opening import open_for
from sparkonce.spark.checkpoints.planned import check_planned, is_as_planned
from sparkonce.spark.connect import ConnectRun, ConnectWork, check_can_connect, missing_offsets, start_on_server
from sparkonce.spark.grouping import grouping_of, slots_decided
from sparkonce.spark.jvm import JvmCache, is_connect
from sparkonce.spark.plans import kafka_sources, reads_plainly, registered_sources, running_plan, sources_of_client
from sparkonce.spark.query_end import close_at_end, running, warn_if_left
from sparkonce.spark.shipped import build_of
from sparkonce.spark.show.failures import is_of_a_stop, without_causes
from sparkonce.spark.start.arguments import (
    Trigger,
    accepted,
    check_frame,
    check_name,
    groups,
    location_of,
    new_writer,
    running_query,
    trigger_keywords,
)
from sparkonce.spark.start.checks import check_query, check_sources, input_offsets, needs_of_sources
from sparkonce.spark.start.executors import check_executors
from sparkonce.spark.start.first_batch import (
    SlotAdvice,
    warn_of_loops,
    warn_of_mode,
    warn_of_repeats,
    warn_of_rows,
    warn_of_slots,
)
from sparkonce.spark.views import (
    Letters,
    ShareSample,
    Sinks,
    check_columns,
    letters_of,
    shares,
    views_of,
    warn_of_refused,
)
from sparkonce.spark.work import SparkWork, check_plans
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.location import checked_location
from sparkonce.storage.spark import SparkCheckpoint
from sparkonce.version import __version__
from sparkonce.watch.listener import QueryListener

if TYPE_CHECKING:
    from sparkonce.sources.topics import SourceTopics

logger = logging.getLogger("sparkonce")

OutputMode = Literal["append", "update", "complete"]
"""Spark's output modes."""

LOOK_OUT_EVERY_S = 60.0
"""The time between two checks of the sinks for what others do to their readers."""


class ExactlyOnce:
    """Commits each batch of a query to its sinks exactly once.

    Give it to ``df.writeStream.foreachBatch(…)``, or let `start` do that. One object serves one query. When a query
    ends that `start` has started, its connections to the servers are closed; after any other query call `close`.

    Example:
        ```python
        from sparkonce import ExactlyOnce, FilesSink, KafkaSink, await_end

        unit = [KafkaSink({"bootstrap.servers": "broker:9092"}, "orders"), FilesSink("/data/orders")]
        query = ExactlyOnce(unit, "/data/checkpoints/orders").start(orders, trigger="1 second")
        await_end(query)
        ```

    Args:
        sinks: One sink, or several that are committed as one unit; their names must differ. A mapping gives each sink
            its own view of the batch: ``{sink: lambda df: df.where(…), other: None}``. The batch is then computed
            once, and kept on the executors while it is written.
        checkpoint: The query's checkpoint folder: an absolute path, or a URL of a local disk, HDFS or an object store,
            as Spark takes it (``file:``, ``hdfs:``, ``s3a:``, ``abfss:``, ``gs:``). The decision log is kept in it.
        checkpoint_moved: Say True once if the checkpoint folder was moved (not copied) since the last run. Otherwise a
            folder at another place is refused, because two copies would write the same batches twice.
        accept_lost_batches: By a sink's name, the newest batch that its server may have lost, as `StaleServerError`
            names it. Rows of those batches are not written again. The setting may stay: later batches are checked.
        group_offsets: Consumer groups whose offsets follow the committed batches.
        outage_patience_s: The seconds for which each phase of a batch waits for a system that cannot be reached, or
            has no room, before the query stops. Stopping loses nothing: the next start resumes.
        sweep_every_s: The seconds between two checks of a thread for transactions that copies of this run have left
            open, while nothing suggests that there are any.
        rows_per_slot: Groups a batch's partitions to one slot for each so many rows that Kafka sources have read. By
            default each partition is a slot, with a transaction in each sink; but small batches of plain queries are
            one slot (docs/operations.md), which 1 turns off.
        dead_letters: Takes the rows that a sink's system refuses, each with its reason; without it such a row stops the
            query. One sink, or ``{sink: other}`` for some of the sinks. It is part of the unit.
        max_refused: How many rows of a batch may be refused before the query stops all the same.
        listener: Called with each phase that a batch enters and the batch's number, at the start of the phase.
        timeline: False writes no timeline into the checkpoint, from which ``sparkonce ui`` shows the newest batches.
        display: True shows progress on standard error: one line that is kept up to date on a terminal, else a line a
            batch. By default, once logging is set up, the lines of batches go to the logger ``sparkonce`` only.

    Raises:
        ConfigurationError: if a setting is wrong.
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
        dead_letters: TwoPhaseCommitSink | Letters | None = None,
        max_refused: int = 1000,
        listener: Listener | None = None,
        timeline: bool = True,
        display: bool | None = None,
    ) -> None:
        self._given = {name: value for name, value in locals().items() if name != "self"}
        views = views_of(sinks)
        self._letters = letters_of(views, dead_letters)
        self._max_refused = whole_number("max_refused", max_refused, least=1)
        self._sinks = {sink.name: sink for sink in (*views, *self._letters.values())}
        self._shares = shares(views, self._letters)
        self.checkpoint = checked_location(checkpoint)
        self._files: CheckpointFiles | None = None
        self._moved = flag("checkpoint_moved", checkpoint_moved)
        self._accept_lost = accepted(accept_lost_batches)
        if unknown := self._accept_lost.keys() - self._sinks.keys():
            raise ConfigurationError(
                f"accept_lost_batches={self._accept_lost!r}: no sink is called {', '.join(sorted(unknown))}.",
                next_step=f"Give names of {sorted(self._sinks)}, as StaleServerError did.",
            )
        self._groups = groups(group_offsets, self._sinks)
        self._timing = Timing(
            outage_patience_s=number("outage_patience_s", outage_patience_s, above=0),
            sweep_every_s=number("sweep_every_s", sweep_every_s, least=0),
            sweep_in_background=True,
            look_out_every_s=LOOK_OUT_EVERY_S,
        )
        self._rows_per_slot = None if rows_per_slot is None else whole_number("rows_per_slot", rows_per_slot, least=1)
        self._arrow = ArrowBatches()
        self._advice = SlotAdvice(is_needed=rows_per_slot is None)
        self.listener = QueryListener(
            None if listener is None else function("listener", listener, example="a function of (phase, batch)"),
            timeline=flag("timeline", timeline),
            display=None if display is None else flag("display", display),
        )
        # By run, since a query that is started again with the same object must claim again.
        self._run: tuple[str, RunDriver] | None = None
        self._cache = JvmCache()
        self._topics: SourceTopics | None = None
        self._others: Sequence[Source] = ()
        self._is_plain = False
        self._started = False
        self._query: StreamingQuery | None = None
        self._followed = ""
        self._remote: ConnectRun | None = None
        self._sources_of_client: tuple[SourceFacts, ...] | None = None

    def __repr__(self) -> str:
        return f"ExactlyOnce({list(self._sinks)}, checkpoint={self.checkpoint!r})"

    @property
    def sinks(self) -> tuple[TwoPhaseCommitSink, ...]:
        """The sinks, in the order in which they were given."""
        return tuple(self._sinks.values())

    @property
    def dead_letters(self) -> Letters:
        """The sink of dead letters of each sink that has one."""
        return self._letters

    def start(
        self,
        df: DataFrame,
        *,
        output_mode: OutputMode = "append",
        trigger: Trigger | None = None,
        query_name: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> StreamingQuery:
        """Starts the query, with this object's checkpoint as its own.

        Args:
            df: A streaming DataFrame.
            output_mode: ``append``, ``update`` or ``complete``, as for ``writeStream.outputMode``.
            trigger: An interval such as ``"1 second"``, or ``"availableNow"``; or the keyword of
                ``writeStream.trigger`` as a mapping, such as ``{"processingTime": "1 second"}``.
            query_name: As for ``writeStream.queryName``.
            options: More options of the stream writer.

        Raises:
            ConfigurationError: if an argument is wrong, the checkpoint cannot be written to, or this object's query
                runs already.
            SchemaError: if a sink refuses the columns.
            LogError: if the checkpoint's decision log cannot be read.
            CheckpointMismatchError: if the checkpoint is not one of Spark's.
            PreflightError: if a server does not allow the guarantee, or is another one than the log knows.
        """
        self._check_is_not_running()
        check_name(df, query_name)
        with self.listener.display.starting(query_name):
            keywords = None if trigger is None else trigger_keywords(trigger)
            return self._start(df, output_mode, keywords, query_name, options)

    def _start(
        self,
        df: DataFrame,
        output_mode: str,
        trigger: Mapping[str, Any] | None,
        query_name: str | None,
        options: Mapping[str, str] | None,
    ) -> StreamingQuery:
        check_frame(df)
        if is_connect(df):
            check_can_connect(self.sinks, self._rows_per_slot)
        writer = new_writer(
            df,
            checkpoint=self.checkpoint,
            output_mode=output_mode,
            trigger=trigger,
            query_name=query_name,
            options=options,
        )
        if is_connect(df):
            self._check_columns(df)  # the rest is checked on the server, by the first batch
            self._sources_of_client = sources_of_client(df)
            self._query = start_on_server(writer, self)
            return self._query
        self._open(df).check()
        self._preflight(df, self._check_columns(df), output_mode, trigger)
        self._started = True
        self._query = query = writer.foreachBatch(self).start()
        warn_if_left(query)
        self._follow(query, query_name or "")
        return query

    def __call__(self, df: DataFrame, batch: int) -> None:
        """Commits one batch. Called by Spark.

        Raises:
            SparkonceError: if the query must stop.
        """
        try:
            rows, done = (self._commit_on_server if is_connect(df) else self._commit)(df, batch)
        except SparkonceError as error:
            logger.debug("Batch %d stopped the query.", batch, exc_info=error)
            if not is_of_a_stop(error):
                self.listener.failed(batch, error)
            elif self._run is not None:
                self.listener.interrupted(self._run[0])
            raise without_causes(error) from None
        self.listener.committed(done)
        warn_of_refused(self._letters, done)
        if self._remote is None:
            self._advice.look(df.sparkSession, rows, done)

    def _commit_on_server(self, df: DataFrame, batch: int) -> tuple[int | None, BatchProgress]:
        if self._remote is None:
            check_can_connect(self.sinks, self._rows_per_slot)
            self._remote = ConnectRun(
                df,
                batch,
                checkpoint=self.checkpoint,
                sinks=self.sinks,
                shares=self._shares,
                max_refused=self._max_refused,
                patience_s=self._timing.outage_patience_s,
                sources=self._sources_of_client,
                check_columns=self._check_columns,
                new_driver=self._new_driver,
            )
        run = self._remote.driver
        _check_once_a_batch(run, batch)
        if self._topics is not None and run.state.view.decision(batch) is None:
            self._topics.check_same()
        return self._remote.commit(df, batch)

    def _commit(self, df: DataFrame, batch: int) -> tuple[int | None, BatchProgress]:
        checkpoint, patience_s = SparkCheckpoint(self._open(df)), self._timing.outage_patience_s
        offsets = input_offsets(checkpoint, batch, patience_s)
        run_id, query = running_query(df)
        run = self._driver(df, run_id, query, offsets or ())
        _check_once_a_batch(run, batch)
        if offsets is None:
            raise missing_offsets(self.checkpoint, batch)
        check_planned(df.sparkSession, query, batch, checkpoint, offsets, self._cache)
        decision = run.state.view.decision(batch)
        if self._topics is not None and decision is None:
            self._topics.check_same()
        before = input_offsets(checkpoint, batch - 1, patience_s)
        rows = rows_read(before, offsets, self._others)
        row_bytes = self._arrow.row_bytes if self._is_plain and is_as_planned(df, query, self._cache) else None
        grouping = grouping_of(rows, before, offsets, self._rows_per_slot, row_bytes, slots_decided(decision))
        work = SparkWork(df, batch, self._shares, grouping, self._max_refused, self._arrow, self._cache)
        asked = BatchAsked(batch=batch, offsets=offsets, previous_offsets=before)
        return rows, run.run_batch(asked, work, rows)

    def progress(self) -> list[BatchProgress]:
        """Returns the last batches of the newest run, oldest first: rows, transactions, seconds of each phase."""
        return list(self._run[1].progress) if self._run is not None else []

    def close(self) -> None:
        """Closes the connections of a query that has ended; its next start opens new ones.

        They are closed soon after the query's end anyway. A batch under way ends first. So do copies of the last
        batch's tasks, as ``spark.speculation`` makes them: that takes some seconds, and their open transactions are
        aborted.
        """
        self.listener.display.end()
        self._end(self._run)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the settings, as Spark Connect's ``foreachBatch`` does: the run begins on the server."""
        given = {**self._given, "display": False}
        pickled = cloudpickle.dumps((given, self._sources_of_client))
        return unpickled, (__version__, build_of("sparkonce"), pickled)

    def _follow(self, query: StreamingQuery, name: str) -> None:
        if self._followed == (run := query.runId):
            return  # its first batch came before `start` was done
        self._followed = run
        self.listener.figures.start(query.id, name)
        close_at_end(query, self.listener.display, self._close_run)

    def _close_run(self, run: str, failure: str) -> None:
        known = self._run
        self._end(known if known is not None and known[0] == run else None, failure)

    def _end(self, known: tuple[str, RunDriver] | None, failure: str = "") -> None:
        """Ends a run; another one of the same object may begin meanwhile."""
        if known is not None:
            self._cache = JvmCache()
            known[1].end()
        self.listener.end_run(known[0] if known is not None else "", failure)

    def _driver(self, df: DataFrame, run: str, query: str, offsets: Sequence[str]) -> RunDriver:
        if self._run is not None and self._run[0] == run:
            return self._run[1]
        files = self._open(df)
        check_query(files, query, lambda: location_of(df.sparkSession, query))
        samples = self._check_columns(df)
        if not self._started:
            check_log(files, Outage(self._timing.outage_patience_s))
            check_executors(df.sparkSession, self.sinks)
        if self._run is not None:
            self._run[1].close()
        plan = running_plan(df.sparkSession, query)
        self._arrow.row_bytes = None  # so its first batch, which an earlier run may still decide, is not small
        whole = all(share.view is None for share in self._shares)
        self._is_plain = plan is not None and whole and reads_plainly(plan)
        sources = kafka_sources(plan) if plan is not None else ()
        # Without the plan, any source may have made the offsets: the same batch must be grouped in the same way again.
        self._others = [source for _, source in (all_registered() if plan is None else registered_sources(plan))]
        if plan is not None and not self._started and SparkCheckpoint(files).is_unrecorded(0):
            warn_of_slots(df.sparkSession, plan, (), samples, self.sinks)
        driver = self._new_driver(run, query, files, sources, offsets)
        self._cache = JvmCache()
        if (found := running(df.sparkSession, query)) is not None:  # of another writer than `start`, for one
            self._follow(found, found.name or "")
        return driver

    def _new_driver(
        self, run: str, query: str, files: CheckpointFiles, sources: Sequence[SourceFacts], offsets: Sequence[str]
    ) -> RunDriver:
        self._topics = None
        if sources:
            from sparkonce.sources.topics import SourceTopics  # imports kafka-python

            self._topics = SourceTopics(sources)
        topics = self._topics
        driver = RunDriver(
            run=run,
            query=query,
            sinks=self._sinks,
            log=DecisionLog(files, decides=True),
            timing=self._timing,
            listener=self.listener,
            library=__version__,
            moved=self._moved,
            accept_lost=self._accept_lost,
            reporters=[*([] if topics is None else [topics]), *map(GroupReporter, self._groups)],
            topics=dict if topics is None else lambda recorded: topics.kept(recorded, offsets),
        )
        self._run = run, driver
        self.listener.begin_run(query, run, driver, files)
        return driver

    def _preflight(
        self, df: DataFrame, samples: Sequence[ShareSample], output_mode: str, trigger: Mapping[str, Any] | None
    ) -> None:
        """Asks the servers before Spark starts. The first batch asks them again, and records their answers."""
        files = self._open(df)
        log = DecisionLog(files, make=False)
        check_log(files)
        view = read_log(log)
        mend(SparkCheckpoint(files), view)
        query = SparkCheckpoint(files).query_id()
        point = ResumePoint.of(files, view)
        if stop := point.refusal(log.location, moved=self._moved):
            raise stop_error(stop, point.batch)
        if point.batch < 0:
            warn_of_mode(output_mode)
        sources = check_sources(df, samples, point, self.sinks, trigger=trigger)
        if where := point.description():
            logger.info("%s", where)
            self.listener.display.say(where)
        recorded = recorded_facts(view)
        short = short_query(query or "0" * 12)
        facts = {name: sink.preflight(short, recorded.get(name)) for name, sink in self._sinks.items()}
        warn_of_rows(sources, self.sinks, facts)
        warn_of_loops(sources, self.sinks)
        warn_of_repeats(self._shares, facts)
        for group in self._groups:
            with closing(GroupReporter(group)) as reporter:
                reporter.check(facts)
        if not point.awaits_commit:  # the driver commits alone; the next batch's first tasks check their workers
            check_executors(df.sparkSession, self.sinks, needs_of_sources(df))

    def _open(self, df: DataFrame) -> CheckpointFiles:
        """Returns the checkpoint's files, which only a session can find, and tells the sinks of them."""
        self._files = self._files or open_for(df.sparkSession, self.checkpoint, self._sinks.values())
        return self._files

    def _check_is_not_running(self) -> None:
        """Refuses a second start, for which Spark would silently stop the first query."""
        if self._query is not None and self._query.isActive:
            raise ConfigurationError(
                f"This ExactlyOnce runs already, as query {self._query.id}: one object, and one checkpoint, serve one "
                "query.",
                next_step="Stop it with query.stop(), then start it again: it resumes after its last batch. A new "
                "checkpoint would write all rows a second time.",
            )

    def _check_columns(self, df: DataFrame) -> Sequence[ShareSample]:
        """Checks columns, types and settings before anything is claimed."""
        samples = check_columns(df, self._shares)
        check_plans(samples, ConnectWork if is_connect(df) else SparkWork)
        speculation = str(df.sparkSession.conf.get("spark.speculation", "false")).lower() == "true"
        once = [sink.name for sink in self._sinks.values() if sink.guarantee is Guarantee.AT_MOST_ONCE]
        if speculation and once:
            raise ConfigurationError(
                f"spark.speculation=true, and sinks {once} are {Guarantee.AT_MOST_ONCE.value}: a speculative copy "
                "would write their rows a second time.",
                next_step="Turn spark.speculation off, or choose another guarantee.",
            )
        return samples


def _check_once_a_batch(run: RunDriver, batch: int) -> None:
    if run.progress and run.progress[-1].batch == batch:
        raise ConfigurationError(
            f"Batch {batch} was given to this ExactlyOnce twice. Its rows are committed, and those of the second "
            "call would not be written.",
            next_step="Call it once in your function. For several sinks or filters give it "
            "{sink: lambda df: df.where('…'), other: None}.",
        )


def unpickled(version: str, build: str, pickled: bytes) -> ExactlyOnce:
    """Returns an `ExactlyOnce` with the settings that a client of Spark Connect has pickled.

    Raises:
        ConfigurationError: if the client has another sparkonce.
    """
    if (version, build) != (here := (__version__, build_of("sparkonce"))):
        raise ConfigurationError(
            f"The client has sparkonce {version} (build {build}), and the server of Spark Connect {here[0]} (build "
            f"{here[1]}).",
            next_step="Install the same on both.",
        )
    given, sources = cloudpickle.loads(pickled)
    made = ExactlyOnce(**given)
    made._sources_of_client = sources
    return made
