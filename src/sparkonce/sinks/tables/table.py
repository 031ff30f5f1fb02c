"""The interface of tables, which Delta and Iceberg implement, and the label of table versions."""

from __future__ import annotations

import abc
import json
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from sparkonce.jvm import quoted
from sparkonce.protocol.handles import Scalar, transaction_fields
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.tables.fitting import Rules, nullable
from sparkonce.sinks.tables.merging import MergePlan
from sparkonce.sinks.write_ahead.application import Unit
from sparkonce.sinks.write_ahead.ledger import Entry
from sparkonce.storage.local import sync_file_system

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType
    from typing_extensions import Self

_NAME = "sparkonce"
_LOOK_BACK = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A label that records in a version which files' rows it contains.

    Attributes:
        first: The fields of the first file's handle.
        members: The number of files.
        digest: A digest of the names of all files.
    """

    first: tuple[tuple[str, Scalar], ...]
    members: int
    digest: str

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Label:
        """Returns the label of files that are written together."""
        names = "\n".join(str(entry.name) for entry in entries)
        return cls(
            first=transaction_fields(entries[0].fields()),
            members=len(entries),
            digest=sha256(names.encode()).hexdigest()[:32],
        )

    @property
    def entry(self) -> Entry | None:
        return Entry.of_fields(dict(self.first))

    def to_text(self) -> str:
        told = {"first": dict(self.first), "members": self.members, "digest": self.digest}
        return json.dumps({_NAME: told}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str | None) -> Label | None:
        """Parses a label. Returns None for any other text."""
        try:
            told = json.loads(text or "")[_NAME]
            return cls(first=transaction_fields(told["first"]), members=told["members"], digest=told["digest"])
        except (ValueError, KeyError, TypeError):
            return None


class Table(abc.ABC):
    """A table, read and written in a Spark session. Every method runs on the driver."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def in_copy(self) -> Self:
        """Returns the table with a copy of its session, which has separate settings."""
        made = copy(self)
        made.spark = type(self.spark)(self.spark.sparkContext, self.spark._jsparkSession.cloneSession())
        return made

    @abc.abstractmethod
    def identity(self) -> str:
        """Returns an identity that distinguishes this table from another one with the same name."""

    @abc.abstractmethod
    def schema(self) -> StructType:
        """Returns the table's columns, with their metadata."""

    @abc.abstractmethod
    def rules(self, columns: Collection[str]) -> Rules:
        """Returns the table's rules for every row that has these columns, given in lower case."""

    @abc.abstractmethod
    def append(self, rows: DataFrame, unit: Unit, label: Label) -> None:
        """Adds rows in one version that carries the label, unless a version already does."""

    @abc.abstractmethod
    def merge(self, rows: DataFrame, plan: MergePlan, unit: Unit, label: Label) -> None:
        """Merges rows in one version that carries the label, unless a version already does.

        Fails if others have changed the rows that the merge read, so that the merge is computed again.
        """

    @abc.abstractmethod
    def refusal(self, rows: DataFrame, plan: MergePlan | None) -> str:
        """Returns why the table would refuse to append or, with a plan, merge any rows; empty if it would not.

        Only analyzes the plan, without running it, so the rows may be empty. Spark may reject it with an
        AnalysisException.
        """

    @abc.abstractmethod
    def frame(self) -> DataFrame:
        """Returns the table as a DataFrame."""

    @property
    @abc.abstractmethod
    def sql_name(self) -> str:
        """The table's name in Spark SQL."""

    def add_columns(self, fields: Sequence[StructField]) -> None:
        """Adds columns, which are null in existing rows, so everything nested in them must be nullable as well."""
        types = self.spark._jvm.org.apache.spark.sql.types.DataType
        columns = (f"{quoted(one.name)} {types.fromJson(nullable(one.dataType).json()).sql()}" for one in fields)
        self.spark.sql(f"ALTER TABLE {self.sql_name} ADD COLUMNS ({', '.join(columns)})")

    @abc.abstractmethod
    def labels(self, newest: int | None = None) -> list[Label]:
        """Returns the labels of all versions that the table remembers, or of only the newest few."""

    def has(self, label: Label) -> bool:
        return label in self.labels(newest=_LOOK_BACK) or label in self.labels()

    @abc.abstractmethod
    def remembers_since_ms(self, unit: Unit) -> int:
        """Returns the time since which all written rows of the unit's query have a label; 0 if all such rows have one.

        The time is compared with the time at which the rows were started, in milliseconds since the epoch.
        """

    def location(self) -> str:
        """Returns the URL of the folder with the table's files; empty for a table without files."""
        return ""

    def sync(self) -> None:
        """Makes a table on a local disk durable, which neither Delta nor Iceberg does."""
        where = urlsplit(self.location())
        if where.scheme in ("", "file") and where.path and (folder := Path(unquote(where.path))).is_dir():
            sync_file_system(folder)

    def unfinished(self) -> Mapping[str, TransactionName]:
        """Returns the remains of attempts that produced no version, each with its transaction."""
        return {}

    def discard(self, unfinished: str) -> None:  # noqa: B027 - for tables in which nothing is left
        """Removes one of `unfinished`, if it still exists. An attempt in progress then fails, and is retried."""
