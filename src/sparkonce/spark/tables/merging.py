"""MERGE: what a batch does to the rows of a table that have the same keys, and what becomes of its other rows.

In all expressions ``source`` is a row of the batch, and ``target`` a row of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal

from sparkonce.arguments import mapping, nonempty, one_of, texts
from sparkonce.errors import ConfigurationError
from sparkonce.sinks.write_ahead.apply import RefusedError
from sparkonce.spark.jvm import items, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

WhenMatched = Literal["update_all"] | Mapping[str, str] | None
WhenNotMatched = Literal["insert_all"] | Mapping[str, str] | None

UPDATE_ALL: Literal["update_all"] = "update_all"
INSERT_ALL: Literal["insert_all"] = "insert_all"
SOURCE, TARGET = "source", "target"
CONDITION = (
    "a batch is merged into the table as it is at the commit, with what others have written by then; rows that others "
    "insert meanwhile under the same key stay beside it"
)
_RANK = "__sparkonce_rank"


@dataclass(frozen=True, slots=True)
class Clause:
    """One WHEN of a MERGE.

    Attributes:
        kind: What becomes of the row.
        condition: For which rows; None for all.
        changes: The columns that are set, and the expression of each.
    """

    kind: Literal["delete", "update", "insert"]
    condition: str | None
    changes: Mapping[str, str]

    def to_sql(self) -> str:
        """Returns the clause in Spark's SQL."""
        when = "WHEN NOT MATCHED" if self.kind == "insert" else "WHEN MATCHED"
        if self.condition is not None:
            when += f" AND {self.condition}"
        columns = {quoted(name): f"({text})" for name, text in self.changes.items()}
        if self.kind == "insert":
            names, values = ", ".join(columns), ", ".join(columns.values())
            return f"{when} THEN INSERT ({names}) VALUES ({values})"  # noqa: S608 - expressions of the user's own
        if self.kind == "update":
            return f"{when} THEN UPDATE SET {', '.join(f'{name} = {text}' for name, text in columns.items())}"
        return f"{when} THEN DELETE"


@dataclass(frozen=True, slots=True)
class MergePlan:
    """A MERGE for rows with certain columns.

    Attributes:
        on: The condition under which two rows match.
        clauses: In the order in which they are tried.
    """

    on: str
    clauses: Sequence[Clause]

    def columns(self, kind: Literal["update", "insert"]) -> tuple[str, ...]:
        """Returns the columns that clauses of a kind set."""
        return tuple(name for clause in self.clauses if clause.kind == kind for name in clause.changes)

    def to_sql(self, target: str, source: str) -> str:
        """Returns the statement of Spark's SQL."""
        into = f"MERGE INTO {target} AS {TARGET} USING {source} AS {SOURCE} ON {self.on}"
        return " ".join([into, *(clause.to_sql() for clause in self.clauses)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """The settings of a merge, see `DeltaSink`.

    Attributes:
        on: The key columns.
        where: Which rows of the table count, beside the key.
        matched: What becomes of a row that matches.
        not_matched: What becomes of a row that matches none.
        delete_when: Which rows that match are deleted.
        update_when: Which rows that match are updated.
        insert_when: Which rows that match none are inserted.
        order_by: The columns by which the last of several rows of a key counts; none to refuse several.
    """

    on: tuple[str, ...]
    where: str | None
    matched: WhenMatched
    not_matched: WhenNotMatched
    delete_when: str | None
    update_when: str | None
    insert_when: str | None
    order_by: tuple[str, ...]

    @classmethod
    def of(
        cls,
        *,
        merge_on: Sequence[str] | None,
        merge_where: str | None,
        when_matched: WhenMatched,
        when_not_matched: WhenNotMatched,
        delete_when: str | None,
        update_when: str | None,
        insert_when: str | None,
        order_by: Sequence[str],
    ) -> Merge | None:
        """Returns the settings as they were given; None for a sink that appends.

        Raises:
            ConfigurationError: if one is wrong, or is given without `merge_on`.
        """
        conditions = {
            "merge_where": merge_where,
            "delete_when": delete_when,
            "update_when": update_when,
            "insert_when": insert_when,
        }
        if merge_on is None:
            given = [name for name, condition in conditions.items() if condition is not None]
            given += ["when_matched"] * (when_matched != UPDATE_ALL)
            given += ["when_not_matched"] * (when_not_matched != INSERT_ALL)
            given += ["order_by"] * bool(order_by)
            if given:
                raise ConfigurationError(
                    f"{given[0]} is given without merge_on: rows are appended then.",
                    next_step="Give merge_on=, the key columns, if rows are to be merged.",
                    setting=given[0],
                )
            return None
        for name, condition in conditions.items():
            if condition is not None:
                nonempty(name, condition, example="a condition in Spark's SQL over source.… and target.…")
        made = cls(
            on=texts("merge_on", merge_on, example="the key columns, such as ['id']"),
            where=merge_where,
            matched=_changes("when_matched", when_matched, UPDATE_ALL),
            not_matched=_changes("when_not_matched", when_not_matched, INSERT_ALL),
            delete_when=delete_when,
            update_when=update_when,
            insert_when=insert_when,
            order_by=texts("order_by", order_by, example="the columns, such as ['updated_at']"),
        )
        made._check()
        return made

    def _check(self) -> None:
        if not self.on:
            raise ConfigurationError(
                "merge_on=[] names no column.", next_step="Give the key columns, such as ['id'].", setting="merge_on"
            )
        for setting, condition, needed, clause in (
            ("update_when", self.update_when, "when_matched", self.matched),
            ("insert_when", self.insert_when, "when_not_matched", self.not_matched),
        ):
            if condition is not None and clause is None:
                raise ConfigurationError(
                    f"{setting}={condition!r} is given with {needed}=None, and would decide nothing.",
                    next_step=f"Leave {setting} out, or give {needed}.",
                    setting=setting,
                )
        if self.matched is None and self.not_matched is None and self.delete_when is None:
            raise ConfigurationError(
                "when_matched=None and when_not_matched=None, without delete_when: the merge would do nothing.",
                next_step="Give one of them.",
                setting="when_matched",
            )

    @property
    def takes_all(self) -> bool:
        """Tells if the rows' columns go to the table's columns of the same name."""
        return self.matched == UPDATE_ALL or self.not_matched == INSERT_ALL

    @property
    def conditions(self) -> Mapping[str, str]:
        """All conditions that were given, by their setting."""
        given = {
            "merge_where": self.where,
            "delete_when": self.delete_when,
            "update_when": self.update_when,
            "insert_when": self.insert_when,
        }
        return {setting: text for setting, text in given.items() if text is not None}

    @property
    def changes(self) -> Mapping[str, Mapping[str, str]]:
        """The expressions for columns, by their setting."""
        given = {"when_matched": self.matched, "when_not_matched": self.not_matched}
        return {setting: changes for setting, changes in given.items() if isinstance(changes, Mapping)}

    def read_by(self, spark: SparkSession) -> frozenset[str]:
        """Returns the rows' columns that an expression reads, in lower case: the table need not have them."""
        expressions = [*self.conditions.values(), *(text for some in self.changes.values() for text in some.values())]
        names = (name for text in expressions for name in names_in(spark, text))
        return frozenset(name[1] for name in names if len(name) > 1 and name[0] == SOURCE)

    def plan(self, spark: SparkSession, given: Sequence[str], fields: Sequence[StructField]) -> MergePlan:
        """Returns the merge for rows with these columns, into a table with those.

        Raises:
            RefusedError: if the table does not have a column that the rows bring.
        """
        names = {name.lower(): name for name in given}
        there = {one.name.lower() for one in fields}
        if self.takes_all and (lost := names.keys() - there - self.read_by(spark)):
            raise RefusedError(f"Columns {sorted(lost)} are none of the table, which has {sorted(there)}.")
        all_of_them = {
            one.name: f"{SOURCE}.{quoted(names[one.name.lower()])}" for one in fields if one.name.lower() in names
        }
        newer = None
        if self.order_by:
            # Structs are compared column by column, and a null is less than any value.
            sides = (", ".join(f"{side}.{quoted(name)}" for name in self.order_by) for side in (SOURCE, TARGET))
            newer = " >= ".join(f"struct({columns})" for columns in sides)
        clauses = []
        if self.delete_when is not None:
            clauses.append(Clause("delete", _both(self.delete_when, newer), {}))
        if self.matched is not None:
            changes = all_of_them if self.matched == UPDATE_ALL else dict(self.matched)
            clauses.append(Clause("update", _both(self.update_when, newer), changes))
        if self.not_matched is not None:
            changes = all_of_them if self.not_matched == INSERT_ALL else dict(self.not_matched)
            clauses.append(Clause("insert", self.inserts(spark), changes))
        keys = " AND ".join(f"{TARGET}.{quoted(name)} = {SOURCE}.{quoted(name)}" for name in self.on)
        return MergePlan(_both(keys, self.where) or "", clauses)

    def inserts(self, spark: SparkSession) -> str | None:
        """Returns the condition under which a row that matches none is inserted; None for every row.

        A row that is to delete by its own columns is not inserted.
        """
        deletes = None
        if self.delete_when is not None and all(name[0] == SOURCE for name in names_in(spark, self.delete_when)):
            deletes = f"NOT coalesce(({self.delete_when}), false)"
        return _both(deletes, self.insert_when)

    def last(self, rows: DataFrame) -> DataFrame:
        """Returns the rows that count: the last one of each key, if they are ordered.

        Those that are equal in the columns of the order are told apart by all others: the answer is always the same.
        """
        if not self.order_by:
            return rows
        from pyspark.sql import Window
        from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

        ordered = {name.lower() for name in self.order_by}
        others = sorted(name for name in rows.columns if name.lower() not in ordered)
        by_key = Window.partitionBy(*map(quoted, self.on))
        newest_first = by_key.orderBy(*(F.col(quoted(name)).desc() for name in (*self.order_by, *others)))
        ranked = rows.withColumn(_RANK, F.row_number().over(newest_first))
        return ranked.where((F.col(_RANK) == 1) | ~has_key(self.on)).drop(_RANK)


def has_key(on: Sequence[str]) -> Column:
    """Returns the condition that a row may match: a null in its key equals nothing."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    return reduce(lambda one, other: one & other, (F.col(quoted(name)).isNotNull() for name in on))


def _changes(setting: str, value: object, word: str) -> Mapping[str, str] | None:
    if value is None or value == word:
        return value  # type: ignore[return-value] # the word is a text
    if isinstance(value, str):
        one_of(setting, value, (word,))
    example = f"{word!r}, None, or expressions by column: {{'total': 'target.total + source.amount'}}"
    found = mapping(setting, value, example=example)
    for column, text in found.items():
        nonempty(f"{setting}[{column!r}]", text, example="an expression in Spark's SQL")
    if not found:
        raise ConfigurationError(f"{setting}={{}} sets no column.", next_step=f"Give {example}.", setting=setting)
    return found


def _both(*conditions: str | None) -> str | None:
    given = [f"({one})" for one in conditions if one is not None]
    return " AND ".join(given) or None


def names_in(spark: SparkSession, text: str) -> list[list[str]]:
    """Returns the parts of each name in an expression, in lower case.

    Raises:
        ParseException: if it is not one of Spark's SQL.
    """
    leaves = spark._jsparkSession.sessionState().sqlParser().parseExpression(text).collectLeaves()
    found = [leaf for leaf in items(leaves) if leaf.getClass().getSimpleName() == "UnresolvedAttribute"]
    return [[str(part).lower() for part in items(leaf.nameParts())] for leaf in found]
