"""A query's checked settings, which all of its runs share, and the drivers of these runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from sparkonce.arguments import flag, mapping, number, shown, whole_number
from sparkonce.decision_log import DecisionLog
from sparkonce.driver.outage import Timing
from sparkonce.driver.run import RunDriver
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.source import SourceFacts
from sparkonce.sources.groups import GroupOffsets, GroupReporter
from sparkonce.spark.checkpoints.opening import open_for
from sparkonce.spark.views import (
    DeadLetterSinks,
    ShareSample,
    Sinks,
    check_columns,
    dead_letter_sinks,
    shares,
    views_of,
)
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.location import checked_location
from sparkonce.version import __version__
from sparkonce.watch.listener import QueryListener

if TYPE_CHECKING:
    from sparkonce.sources.topics import SourceTopics

MONITOR_EVERY_S = 60.0
"""The interval at which sinks are checked for foreign transactions that block their readers."""


class QuerySettings:
    """The settings of a query. For the arguments, see `sparkonce.ExactlyOnce`.

    Attributes:
        sinks: All sinks by name, including those that take dead letters.
        is_checked: True once `sparkonce.ExactlyOnce.start` has checked the query.
        sources: The sources that `start` found on a client of Spark Connect; None if it was not called there.
    """

    def __init__(
        self,
        sinks: Sinks,
        checkpoint: str | os.PathLike[str],
        *,
        checkpoint_moved: bool,
        accept_lost_batches: Mapping[str, int] | None,
        group_offsets: GroupOffsets | Sequence[GroupOffsets],
        outage_patience_s: float,
        sweep_every_s: float,
        rows_per_slot: int | None,
        dead_letters: TwoPhaseCommitSink | DeadLetterSinks | None,
        max_refused: int,
    ) -> None:
        views = views_of(sinks)
        self.dead_letters = dead_letter_sinks(views, dead_letters)
        self.max_refused = whole_number("max_refused", max_refused, least=1)
        self.sinks = {sink.name: sink for sink in (*views, *self.dead_letters.values())}
        self.shares = shares(views, self.dead_letters)
        self.checkpoint = checked_location(checkpoint)
        self.moved = flag("checkpoint_moved", checkpoint_moved)
        self.accept_lost = _accept_lost(accept_lost_batches, self.sinks)
        self.groups = checked_groups(group_offsets, self.sinks)
        self.timing = Timing(
            outage_patience_s=number("outage_patience_s", outage_patience_s, above=0),
            sweep_every_s=number("sweep_every_s", sweep_every_s, least=0),
            sweep_in_background=True,
            monitor_every_s=MONITOR_EVERY_S,
        )
        self.rows_per_slot = None if rows_per_slot is None else whole_number("rows_per_slot", rows_per_slot, least=1)
        self.is_checked = False
        self.sources: tuple[SourceFacts, ...] | None = None
        self._files: CheckpointFiles | None = None

    def open(self, spark: SparkSession) -> CheckpointFiles:
        """Returns the checkpoint's files, which can only be found through a session, and passes them to the sinks."""
        self._files = self._files or open_for(spark, self.checkpoint, self.sinks.values())
        return self._files

    def check_columns(self, df: DataFrame) -> Sequence[ShareSample]:
        """Checks the columns, and settings that depend on the session. Returns each sink's share of an empty batch."""
        samples = check_columns(df, self.shares)
        speculation = str(df.sparkSession.conf.get("spark.speculation", "false")).lower() == "true"
        once = [sink.name for sink in self.sinks.values() if sink.guarantee is Guarantee.AT_MOST_ONCE]
        if speculation and once:
            raise ConfigurationError(
                f"spark.speculation=true, and sinks {once} are {Guarantee.AT_MOST_ONCE.value}: a speculative copy "
                "would write their rows a second time.",
                next_step="Turn spark.speculation off, or choose another guarantee.",
            )
        return samples

    def begin_run(
        self,
        listener: QueryListener,
        run: str,
        query: str,
        files: CheckpointFiles,
        sources: Sequence[SourceFacts],
        offsets: Sequence[str],
    ) -> tuple[RunDriver, SourceTopics | None]:
        """Returns the driver of a new run, given its first batch's end offsets, and the topics that the query reads."""
        topics: SourceTopics | None = None
        if sources:
            from sparkonce.sources.topics import SourceTopics  # imports kafka-python

            topics = SourceTopics(sources)
        driver = RunDriver(
            run=run,
            query=query,
            sinks=self.sinks,
            log=DecisionLog(files, decides=True),
            timing=self.timing,
            listener=listener,
            library=__version__,
            moved=self.moved,
            accept_lost=self.accept_lost,
            reporters=[*([] if topics is None else [topics]), *map(GroupReporter, self.groups)],
            topics=dict if topics is None else lambda recorded: topics.ids_to_record(recorded, offsets),
        )
        listener.begin_run(query, run, driver, files)
        return driver, topics


def _accept_lost(accepted: object, sinks: Mapping[str, TwoPhaseCommitSink]) -> dict[str, int]:
    batches = {} if accepted is None else mapping("accept_lost_batches", accepted, example="{'kafka': 41}")
    if unknown := batches.keys() - sinks.keys():
        raise ConfigurationError(
            f"accept_lost_batches={accepted!r}: no sink is called {', '.join(sorted(unknown))}.",
            next_step=f"Give names of {sorted(sinks)}, as StaleServerError did.",
        )
    return {name: whole_number(f"accept_lost_batches[{name!r}]", batch, least=0) for name, batch in batches.items()}


def checked_groups(
    groups: GroupOffsets | Sequence[GroupOffsets], sinks: Mapping[str, TwoPhaseCommitSink]
) -> tuple[GroupOffsets, ...]:
    """Checks and returns the consumer groups that get the query's offsets."""
    found = tuple(groups) if isinstance(groups, list | tuple) else (groups,)
    for group in found:
        if not isinstance(group, GroupOffsets):
            raise ConfigurationError(
                f"group_offsets={shown(group)} is not a GroupOffsets.",
                next_step="Give GroupOffsets('group', {'bootstrap.servers': 'broker:9092'}), or a list of them.",
                setting="group_offsets",
            )
        name = group.in_transaction_of
        exact = {one.name for one in sinks.values() if one.kafka_settings and one.guarantee is Guarantee.EXACTLY_ONCE}
        if name is None or name in exact:
            continue
        raise ConfigurationError(
            f"in_transaction_of={name!r} names no KafkaSink that is {Guarantee.EXACTLY_ONCE.value}; the sinks are "
            f"{sorted(sinks)}.",
            next_step="Name one, or leave in_transaction_of out: offsets are then committed after each batch.",
        )
    return found
