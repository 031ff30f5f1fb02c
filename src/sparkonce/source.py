"""The contract of a streaming source, and everything that your own source imports.

A query can read any Spark source that stores its offsets in the checkpoint. A `Source` tells sparkonce what only its
author knows: how `sparkonce.explain` judges it, what to check at a start, and how many rows lie between two offsets.

A package lists its sources in the entry point group ``sparkonce.sources``. An entry's name is the format's name, as
passed to ``spark.readStream.format(…)``; its value is ``module:class`` of the `Source`. The class is loaded when a
query uses that format.

The module also exports the types that a source's methods accept and return. A source that stores something in the
query's checkpoint uses `CheckpointFiles`, with the results of its ``put``, and `SparkCheckpoint`, which shows the
query's progress.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from sparkonce.errors import ConfigurationError, OutageError, PreflightError
from sparkonce.findings import Finding, doubles, holds, loses, must, note
from sparkonce.needs import WorkerNeeds
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError, Taken
from sparkonce.storage.spark_checkpoint import SparkCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CheckpointFiles",
    "ConfigurationError",
    "Finding",
    "Landed",
    "OutageError",
    "PreflightError",
    "PutUnknownError",
    "Source",
    "SourceFacts",
    "SparkCheckpoint",
    "Taken",
    "WorkerNeeds",
    "doubles",
    "holds",
    "loses",
    "must",
    "note",
]

logger = logging.getLogger("sparkonce")

GROUP = "sparkonce.sources"
"""The group of entry points."""

FILES = frozenset({"avro", "binaryfile", "csv", "file", "json", "orc", "parquet", "text", "xml"})
BUILT_IN = FILES | {
    *("delta", "iceberg", "kafka", "memory", "rate", "rate-micro-batch", "ratestream", "socket", "textsocket")
}
"""The formats that are built into sparkonce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """A streaming source of a query.

    Attributes:
        format: The name of the source's format in lower case, for example ``kafka``.
        options: The source's options, with lower-case names; None if unknown, because it was found in a checkpoint.
        where: The topics, folder or table that the source reads, for display.
    """

    format: str
    options: Mapping[str, str] | None = field(default_factory=dict)
    where: str = ""

    def is_true(self, option: str) -> bool:
        """Returns True if an option, named in lower case, is set to true."""
        return (self.options or {}).get(option, "").strip().lower() == "true"

    def is_false(self, option: str) -> bool:
        """Returns True if an option, named in lower case, is set to false."""
        return (self.options or {}).get(option, "").strip().lower() == "false"


class Source(abc.ABC):
    """Describes a streaming source to sparkonce. Only `judge` is required.

    One object serves all queries of a process. Its module is loaded only on the driver. Import client libraries inside
    the methods that use them, because commands load the source even if no client is installed.
    """

    @abc.abstractmethod
    def judge(self, source: SourceFacts, downtime: str) -> Iterable[Finding]:
        """Judges the source's guarantee, for `sparkonce.explain`.

        Args:
            source: The source in a query.
            downtime: The longest downtime of the query, for display, such as ``2 hours``.

        Returns:
            The findings, created with `holds`, `must`, `doubles`, `loses` and `note`.
        """

    def starts_at_end(self, source: SourceFacts) -> bool:  # noqa: ARG002 - for those that override it
        """Returns True if a first start skips rows that already exist, for `sparkonce.explain`."""
        return False

    def describe_offset(self, offset: Any) -> str | None:  # noqa: ARG002 - for those that override it
        """Describes what the source reads from an offset in a checkpoint, for `sparkonce.explain`.

        Args:
            offset: The offset of any source, parsed from Spark's JSON.

        Returns:
            The description, which may be empty; None if the offset does not belong to this source.
        """
        return None

    def rows_between(self, before: Any, after: Any) -> int | None:  # noqa: ARG002 - for those that override it
        """Counts the rows between two offsets, parsed from Spark's JSON.

        The number is used to group small batches into fewer slots, and to estimate the duration of a batch.

        Returns:
            The number of rows; None if the offsets do not count rows, or do not belong to this source.
        """
        return None

    def check(self, spark: SparkSession, source: SourceFacts, trigger: Mapping[str, Any]) -> None:  # noqa: B027
        """Checks the source's servers before the query starts.

        Args:
            spark: The session.
            source: The source in the query.
            trigger: The query's trigger, such as ``{"availableNow": True}``.

        Raises:
            PreflightError: If a server does not respond or lacks something. The message names it.
        """

    def worker_needs(self, source: SourceFacts) -> WorkerNeeds:  # noqa: ARG002 - for those that override it
        """Returns what the source's tasks need on the executors' hosts. It is checked at each start."""
        return WorkerNeeds()


def registered(form: str) -> Source | None:
    """Returns the source that a package has registered for a format; None if there is none.

    Raises:
        ConfigurationError: If the source cannot be loaded.
    """
    return None if form.lower() in BUILT_IN or form.lower() not in _entries() else _loaded(form.lower())


def all_registered() -> Iterator[tuple[str, Source]]:
    """Yields the formats and sources that packages have registered, and logs those that cannot be loaded."""
    for form in _entries():
        try:
            loaded = _loaded(form)
        except ConfigurationError as error:  # noqa: PERF203 - the query may not even read this source
            logger.warning("%s", error)
        else:
            yield form, loaded


@cache
def _entries() -> Mapping[str, EntryPoint]:
    return {entry.name.lower(): entry for entry in entry_points(group=GROUP)}


@cache
def _loaded(form: str) -> Source:
    entry = _entries()[form]
    try:
        made = entry.load()()
    except Exception as error:
        raise ConfigurationError(
            f"The source of format {form} cannot be loaded from {entry.value}: {type(error).__name__}: {error}.",
            next_step=f"Correct the package's entry point in the group {GROUP}, or uninstall the package.",
        ) from error
    if not isinstance(made, Source):
        raise ConfigurationError(
            f"The source of format {form}, {entry.value}, is a {type(made).__name__}, and not a Source.",
            next_step=f"Correct the package's entry point in the group {GROUP}, or uninstall the package.",
        )
    return made
