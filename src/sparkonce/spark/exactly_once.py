"""The object that a user passes to ``foreachBatch``."""

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
from sparkonce.jvm import JvmCache, is_connect
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
    DeadLetterSinks,
    ShareSample,
    Sinks,
    check_columns,
    dead_letter_sinks,
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

MONITOR_EVERY_S = 60.0
"""The interval at which sinks are checked for foreign transactions that block their readers."""


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
        sinks: One sink, or several that commit as one unit. Their names must differ. A mapping gives each sink its own
            view of the batch: ``{sink: lambda df: df.where(…), other: None}``. The batch is then computed once, and
            cached on the executors while it is written.
        checkpoint: The query's checkpoint folder: an absolute path, or a URL of a local disk, HDFS or an object store,
            in the form Spark accepts (``file:``, ``hdfs:``, ``s3a:``, ``abfss:``, ``gs:``). It also holds the decision
            log.
        checkpoint_moved: Set it to True once if the checkpoint folder was moved (not copied) since the last run.
            Otherwise a folder at a different location is refused, because two copies would write the same batches
            twice.
        accept_lost_batches: For each sink's name, the newest batch that its server may have lost, as reported by
            `StaleServerError`. The rows of those batches are not written again. You can leave the setting in place:
            later batches are still checked.
        group_offsets: Consumer groups whose offsets follow the committed batches.
        outage_patience_s: How long each phase of a batch waits for a system that is unreachable or out of space before
            the query stops, in seconds. Stopping loses nothing: the next start resumes.
        sweep_every_s: The interval, in seconds, at which a background thread looks for transactions left open by losing
            task attempts when nothing suggests that there are any.
        rows_per_slot: Groups a batch's partitions into one slot for every this many rows read by Kafka sources. By
            default each partition is a slot, with a transaction in each sink, except that a small batch of a simple
            query is one slot (docs/operations.md). Set it to 1 to turn that off.
        dead_letters: Receives the rows that a sink's system refuses, each with its reason. Without it such a row stops
            the query. Either one sink, or ``{sink: other}`` for some of the sinks. It commits as part of the unit.
        max_refused: The number of refused rows per batch above which the query stops anyway.
        listener: Called at the start of each phase of a batch, with the phase and the batch's number.
        timeline: Set it to False to write no timeline into the checkpoint. ``sparkonce ui`` shows recent batches from
            it.
        display: True shows progress on standard error: a single updating line on a terminal, otherwise one line per
            batch. By default, once logging is configured, the lines go only to the logger ``sparkonce``.

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
        self._given = {name: value for name, value in locals().items() if name != "self"}
        views = views_of(sinks)
        self._dead_letters = dead_letter_sinks(views, dead_letters)
        self._max_refused = whole_number("max_refused", max_refused, least=1)
        self._sinks = {sink.name: sink for sink in (*views, *self._dead_letters.values())}
        self._shares = shares(views, self._dead_letters)
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
            monitor_every_s=MONITOR_EVERY_S,
        )
        self._rows_per_slot = None if rows_per_slot is None else whole_number("rows_per_slot", rows_per_slot, least=1)
        self._arrow = ArrowBatches()
        self._advice = SlotAdvice(is_needed=rows_per_slot is None)
        self.listener = QueryListener(
            None if listener is None else function("listener", listener, example="a function of (phase, batch)"),
            timeline=flag("timeline", timeline),
            display=None if display is None else flag("display", display),
        )
        # Keyed by run: a query that is restarted with the same object must claim the log again.
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
        """The sinks, in the order in which they were passed."""
        return tuple(self._sinks.values())

    @property
    def dead_letters(self) -> DeadLetterSinks:
        """The dead-letter sink of each sink that has one."""
        return self._dead_letters

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
            options: Further options of the stream writer.

        Raises:
            ConfigurationError: If an argument is wrong, the checkpoint is not writable, or this object's query is
                already running.
            SchemaError: If a sink refuses the columns.
            LogError: If the checkpoint's decision log cannot be read.
            CheckpointMismatchError: If the folder is not a Spark checkpoint.
            PreflightError: If a server cannot uphold the guarantee, or is not the one that the log knows.
        """
        self._check_is_not_running(df)
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
            self._check_columns(df)  # the first batch checks the rest on the server
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
            SparkonceError: If the query must stop.
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
        warn_of_refused(self._dead_letters, done)
        if self._remote is None:
            self._advice.observe(df.sparkSession, rows, done)

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
        """Returns the newest run's recent batches, oldest first: rows, transactions, and the seconds of each phase."""
        return list(self._run[1].progress) if self._run is not None else []

    def close(self) -> None:
        """Closes the connections of a query that has ended; its next start opens new ones.

        They are closed soon after the query's end in any case. A batch in progress finishes first. So do other attempts
        of the last batch's tasks, such as those of ``spark.speculation``: that takes a few seconds, after which their
        open transactions are aborted.
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
            return  # its first batch arrived before `start` returned
        self._followed = run
        self.listener.figures.start(query.id, name)
        close_at_end(query, self.listener.display, self._close_run)

    def _close_run(self, run: str, failure: str) -> None:
        known = self._run
        self._end(known if known is not None and known[0] == run else None, failure)

    def _end(self, known: tuple[str, RunDriver] | None, failure: str = "") -> None:
        """Ends a run. Another run of the same object may begin in the meantime."""
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
        # so the first batch, which an earlier run may yet have decided, is not treated as small
        self._arrow.row_bytes = None
        whole = all(share.view is None for share in self._shares)
        self._is_plain = plan is not None and whole and reads_plainly(plan)
        sources = kafka_sources(plan) if plan is not None else ()
        # Without the plan, any source may have produced the offsets, and the batch must be grouped the same way again.
        self._others = [source for _, source in (all_registered() if plan is None else registered_sources(plan))]
        if plan is not None and not self._started and SparkCheckpoint(files).is_unrecorded(0):
            warn_of_slots(df.sparkSession, plan, (), samples, self.sinks)
        driver = self._new_driver(run, query, files, sources, offsets)
        self._cache = JvmCache()
        if (found := running(df.sparkSession, query)) is not None:  # for example started by another writer than `start`
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
        """Checks the servers before Spark starts. The first batch checks them again and records the results."""
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
        if not point.awaits_commit:  # only the driver commits; the next batch's first tasks check their own workers
            check_executors(df.sparkSession, self.sinks, needs_of_sources(df))

    def _open(self, df: DataFrame) -> CheckpointFiles:
        """Returns the checkpoint's files, which can only be found through a session, and passes them to the sinks."""
        self._files = self._files or open_for(df.sparkSession, self.checkpoint, self._sinks.values())
        return self._files

    def _check_is_not_running(self, df: object) -> None:
        """Refuses a second start, for which Spark would silently stop the first query."""
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

    def _check_columns(self, df: DataFrame) -> Sequence[ShareSample]:
        """Checks columns, types and settings before the log is claimed."""
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
    """Returns an `ExactlyOnce` with the settings that a Spark Connect client has pickled.

    Raises:
        ConfigurationError: If the client has a different build of sparkonce.
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
