"""Assigns rows to sinks: each sink's share of a batch, and the dead-letter sink for rows that a sink rejects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, NullType, StructField, StructType

from sparkonce.arguments import shown
from sparkonce.dead_letters import dead_letter_columns
from sparkonce.driver.progress import BatchProgress
from sparkonce.errors import ConfigurationError, SchemaError, SparkonceError, one_line
from sparkonce.guarantees import Guarantee
from sparkonce.jvm import no_rows, repeated_name, types_inside
from sparkonce.sink import TwoPhaseCommitSink

View: TypeAlias = Callable[[DataFrame], DataFrame]
"""Returns a sink's share of a batch. Called once at the start with an empty batch, then once per batch."""

Sinks: TypeAlias = TwoPhaseCommitSink | Sequence[TwoPhaseCommitSink] | Mapping[TwoPhaseCommitSink, View | None]

DeadLetterSinks: TypeAlias = Mapping[TwoPhaseCommitSink, TwoPhaseCommitSink]
"""Maps a sink to its dead-letter sink."""

_NONE: DeadLetterSinks = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Sinks with the same view of a batch: one Spark job writes to all of them.

    Attributes:
        view: The view that they share; None for the whole batch.
        sinks: The sinks by name, including dead-letter sinks.
        dead_letters: Maps the name of a sink to the name of its dead-letter sink.
    """

    view: View | None
    sinks: Mapping[str, TwoPhaseCommitSink]
    dead_letters: Mapping[str, str] = field(default_factory=dict)

    def columns(self, sink: TwoPhaseCommitSink, schema: pa.Schema) -> tuple[str, ...]:
        """Returns the columns that a sink takes from the share, or from dead letters."""
        return dead_letter_columns(sink) if self.is_for_dead_letters(sink.name) else tuple(sink.columns(schema))

    def is_for_dead_letters(self, name: str) -> bool:
        """Returns True if the sink takes dead letters."""
        return name in self.dead_letters.values()

    def of_none(self, empty: DataFrame) -> DataFrame:
        """Returns the share of these sinks in a batch without rows, which shows their columns at the start."""
        try:
            return self.of(empty)
        except SparkonceError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise ConfigurationError(
                f"The view of sink {sorted(self.sinks)} fails. The start gives it a batch without rows, to learn its "
                f"columns: {type(error).__name__}: {one_line(str(error))}.",
                next_step="Let it return the same columns if there are no rows. Give createDataFrame() a schema, and "
                "take no value out of the rows, as first() and collect() do.",
            ) from error

    def of(self, batch: DataFrame) -> DataFrame:
        """Returns the share of these sinks in a batch."""
        if self.view is None:
            return batch
        try:
            made = self.view(batch)
            streams = isinstance(made, DataFrame) and made.isStreaming  # Spark Connect only evaluates the view here
        except AnalysisException as error:
            reason = str(error).splitlines()[0].rstrip(";")
            raise ConfigurationError(
                f"The view of sink {sorted(self.sinks)} cannot be computed: {reason}",
                next_step=f"Correct it: the rows' columns are {', '.join(batch.columns)}."
                if "UNRESOLVED_COLUMN" in reason
                else "Correct it.",
            ) from error
        if not isinstance(made, DataFrame):
            raise ConfigurationError(
                f"The view of sink {sorted(self.sinks)} returned a {type(made).__name__}, and must return a DataFrame.",
                next_step="Return what the sink is to write, for example: lambda df: df.where('amount > 0').",
            )
        if streams:
            raise ConfigurationError(
                f"The view of sink {sorted(self.sinks)} returned a DataFrame that streams, and not its batch.",
                next_step="Use the view's argument, which is the batch: lambda df: df.where('amount > 0').",
            )
        return made


def views_of(sinks: Sinks) -> dict[TwoPhaseCommitSink, View | None]:
    """Returns the sinks that a user has passed, in that order, each with its view."""
    several = isinstance(sinks, Iterable) and not isinstance(sinks, str)
    listed: list[Any] = list(sinks) if several else [sinks]  # type: ignore[arg-type]
    for sink in listed:
        if not isinstance(sink, TwoPhaseCommitSink):
            raise ConfigurationError(
                f"sinks={shown(sink)} is not a sink.",
                next_step="Give a sink, such as KafkaSink({'bootstrap.servers': 'broker:9092'}, topic='totals'), a "
                "list of sinks, or {sink: view}.",
                setting="sinks",
            )
    names = [sink.name for sink in listed]
    if not names or len(set(names)) != len(names):
        raise ConfigurationError(
            f"sinks={names}: at least one sink is needed, and their names must differ.",
            next_step="Give each sink its own name, which must stay the same after a restart.",
        )
    found = dict(sinks) if isinstance(sinks, Mapping) else dict.fromkeys(listed)
    for sink, view in found.items():
        if view is not None and not callable(view):
            raise ConfigurationError(
                f"The view of sink {sink.name!r} is {view!r}: it must be a function of a DataFrame, or None.",
                next_step="Give {sink: lambda df: …}, or None for the whole batch.",
            )
    return found


def shares(views: Mapping[TwoPhaseCommitSink, View | None], dead_letters: DeadLetterSinks = _NONE) -> tuple[Share, ...]:
    """Groups the sinks by their view. Views are compared by identity, because a view may define its own equality."""
    together: dict[int, dict[str, TwoPhaseCommitSink]] = {}
    dead: dict[int, dict[str, str]] = {}
    for sink, view in views.items():
        together.setdefault(id(view), {})[sink.name] = sink
        if (to := dead_letters.get(sink)) is not None:
            dead.setdefault(id(view), {})[sink.name] = to.name
    for sink, to in dead_letters.items():
        together[id(views[sink])][to.name] = to
    different = {id(view): view for view in views.values()}
    return tuple(
        Share(view=view, sinks=together[key], dead_letters=dead.get(key, {})) for key, view in different.items()
    )


def arrow_schema(schema: StructType, *, is_case_sensitive: bool = True) -> pa.Schema:
    """Returns the columns as a sink sees them.

    Raises:
        SchemaError: If a column appears twice, is an array or map of nulls, or has a type that PySpark cannot transfer
            to Python, such as year-month intervals. The message names the column.
    """
    if (twice := repeated_name(schema.names, is_case_sensitive=is_case_sensitive)) is not None:
        raise SchemaError(f"The column {twice!r} appears more than once.", next_step="Drop or rename all but one.")
    for column in schema:
        if (twice := _field_twice(column.dataType)) is not None:
            raise SchemaError(
                f"Column {column.name!r} has the field {twice!r} more than once.",
                next_step="Drop or rename all but one.",
            )
        if _has_nothing_inside(column.dataType):
            kind = column.dataType.simpleString()
            raise SchemaError(
                f"Column {column.name!r} is {kind}, and no sink can write void.",
                next_step="Give what is inside a type, for example cast(array() as array<string>), or drop the column.",
            )
    try:
        return to_arrow(schema)
    except PySparkTypeError:
        refused = [column for column in schema if not _is_transferred(column)]
        named = ", ".join(f"{column.name!r} is {column.dataType.simpleString()}" for column in refused)
        raise SchemaError(
            f"PySpark cannot transfer these columns to Python: {named}.",
            next_step="Cast them to types that it can, such as int or string, or drop them.",
        ) from None


def to_arrow(schema: StructType) -> pa.Schema:
    """Converts a schema with PySpark's function. Passes UTC as the time zone, which is an argument in 4.2 and newer."""
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def _field_twice(kind: DataType) -> str | None:
    twice = repeated_name(kind.names, is_case_sensitive=True) if isinstance(kind, StructType) else None
    return twice or next(filter(None, map(_field_twice, types_inside(kind))), None)


def _has_nothing_inside(kind: DataType) -> bool:
    return any(isinstance(one, NullType) or _has_nothing_inside(one) for one in types_inside(kind))


def _is_transferred(column: StructField) -> bool:
    try:
        to_arrow(StructType([column]))
    except PySparkTypeError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSample:
    """The share of some sinks in an empty batch."""

    share: Share
    batch: DataFrame
    frame: DataFrame


def check_columns(df: DataFrame, shares: Sequence[Share]) -> list[ShareSample]:
    """Checks that each sink accepts the columns of its share. Returns the shares of an empty batch."""
    empty = no_rows(df.sparkSession, df.schema)
    samples = [ShareSample(share=share, batch=empty, frame=share.of_none(empty)) for share in shares]
    is_case_sensitive = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    for one in samples:
        schema = arrow_schema(one.frame.schema, is_case_sensitive=is_case_sensitive)
        for sink in one.share.sinks.values():
            one.share.columns(sink, schema)
    return samples


@contextmanager
def computed_once(batch: DataFrame, shares: Sequence[Share]) -> Iterator[DataFrame]:
    """Caches the batch on the executors while it is being written, if there are views.

    Each view is a separate Spark job. A stateful plan must run completely and only once, so the whole batch is computed
    before the first view.
    """
    if all(share.view is None for share in shares):
        yield batch
        return
    persisted = _persist(batch)
    try:
        persisted.count()
        yield persisted
    finally:
        persisted.unpersist()


_CLONING_SETTINGS = (
    "spark.sql.adaptive.applyFinalStageShuffleOptimizations",
    "spark.sql.sources.bucketing.autoBucketedScan.enabled",
)
"""With these settings on, `DataFrame.persist` plans in a clone of the session in which they are off."""


def _persist(batch: DataFrame) -> DataFrame:
    """Caches the rows without cloning the session, because every batch would leak a clone.

    Spark 4.0.0, 4.0.1 and 4.1.0 never free a cloned session, which takes 0.3 MB, because the cleaner of its artifact
    manager references it (SPARK-54753).
    """
    conf = batch.sparkSession.conf
    # Queries of Spark Connect may share a session. If another query has just turned a setting off, that query restores
    # it.
    before = {name: value for name in _CLONING_SETTINGS if (value := conf.get(name, None)) != "false"}
    try:
        for name in before:
            conf.set(name, "false")
        return batch.persist(StorageLevel.MEMORY_AND_DISK)
    finally:
        for name, value in before.items():
            conf.unset(name) if value is None else conf.set(name, value)


logger = logging.getLogger("sparkonce")


def warn_of_refused(dead_letters: DeadLetterSinks, done: BatchProgress) -> None:
    """Logs how many rows of a batch were rejected."""
    for name in dict.fromkeys(to.name for to in dead_letters.values()):
        if refused := done.rows.get(name, 0):
            logger.warning(
                "Batch %d: %d rows were refused, and are in sink %r with the reasons.", done.batch, refused, name
            )


def refused_rows_of(sink: TwoPhaseCommitSink, dead_letters: DeadLetterSinks) -> str:
    """Describes, for users, what happens to the rows that a sink's system rejects."""
    if (to := dead_letters.get(sink)) is not None:
        return f"a row that its system refuses goes to sink {to.name} with the reason, in the same unit (dead_letters)"
    if senders := [one.name for one in dead_letters if dead_letters[one] is sink]:
        return f"it takes the rows that {', '.join(senders)} refuses, and a row that it refuses itself stops the query"
    if sink.tells_refused:
        return "a row that its system refuses stops the query before its batch is decided: no sink shows any of it"
    return "a row that its system refuses stops the query; if the batch is decided by then, other sinks may show theirs"


def dead_letter_sinks(
    views: Mapping[TwoPhaseCommitSink, View | None], dead_letters: TwoPhaseCommitSink | DeadLetterSinks | None
) -> DeadLetterSinks:
    """Returns the dead-letter sink of each sink that has one."""
    if dead_letters is None:
        return {}
    found = (
        dict(dead_letters)
        if isinstance(dead_letters, Mapping)
        else {sink: dead_letters for sink in views if sink.tells_refused}
    )
    for sink, to in found.items():
        if not isinstance(to, TwoPhaseCommitSink) or sink not in views:
            raise ConfigurationError(
                f"dead_letters={shown(dead_letters)} is neither a sink nor a mapping from sinks of the query to "
                "others.",
                next_step="Give a sink, such as FilesSink('/data/refused', name='refused'), or {sink: other}.",
                setting="dead_letters",
            )
        if not sink.tells_refused:
            raise ConfigurationError(
                f"dead_letters names sink {sink.name!r}, a {type(sink).__name__}, which does not report the rows that "
                "its system refuses.",
                next_step="Leave it out: such a row stops the query.",
                setting="dead_letters",
            )
        if not to.takes_dead_letters:
            raise ConfigurationError(
                f"dead_letters={to.name!r} is a {type(to).__name__}, which may refuse a row after the decision only.",
                next_step="Give a FilesSink, a topic, or a table of a database.",
                setting="dead_letters",
            )
        low = next((one for one in (sink, to) if one.guarantee is not Guarantee.EXACTLY_ONCE), None)
        if low is not None:
            raise ConfigurationError(
                f"dead_letters with sink {low.name!r}, which is {low.guarantee.value}: accepted and refused rows "
                "would not be exactly the input.",
                next_step="Leave its guarantee at EXACTLY_ONCE, or leave dead_letters out.",
                setting="dead_letters",
            )
    if not found:
        raise ConfigurationError(
            f"dead_letters is given, and none of the sinks {[sink.name for sink in views]} reports the rows that its "
            "system refuses.",
            next_step="Leave it out: such a row stops the query.",
            setting="dead_letters",
        )
    _check_dead_letters(views, found)
    return found


def _check_dead_letters(views: Mapping[TwoPhaseCommitSink, View | None], dead_letters: DeadLetterSinks) -> None:
    others = {to.name: to for to in dead_letters.values()}
    used = {sink.name for sink in views}
    if taken := used & others.keys() or ({to.name for to in dead_letters.values() if to is not others[to.name]}):
        raise ConfigurationError(
            f"dead_letters: two sinks are called {sorted(taken)[0]!r}.",
            next_step="Give the dead-letter sink its own name, which must stay the same after a restart.",
            setting="dead_letters",
        )
    for name, to in others.items():
        if len({id(views[sink]) for sink, other in dead_letters.items() if other is to}) > 1:
            raise ConfigurationError(
                f"dead_letters: sink {name!r} would take rows of several views, each of which has its own slots.",
                next_step="Give {sink: other}, with another sink of dead letters for each view.",
                setting="dead_letters",
            )
