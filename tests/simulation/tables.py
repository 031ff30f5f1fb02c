"""The common parts of Delta and Iceberg tables that batches are merged into.

Each row of a batch increments the row with its key, or deletes it. The table's content must therefore result from its
batches, one after the other, each once, and from what others write in between. Several rows with the same key within a
batch are rejected while the batch is merged, which is too late.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from simulation.engine import UNDER_WAY
from simulation.oracle import Violation
from simulation.staged import SparkError, Staged
from sparkonce.sinks.tables.committer import TableCommitter
from sparkonce.sinks.tables.merging import INSERT_ALL, Merge, MergePlan

if TYPE_CHECKING:
    from simulation.engine import Simulation
    from sparkonce.protocol.ownership import TransactionName

Content = Mapping[str, int]
"""The table: for each key, how often it was incremented since it was inserted."""

MERGE = Merge.of(
    merge_on=["key"],
    merge_where=None,
    when_matched={"count": "target.count + source.count"},
    when_not_matched=INSERT_ALL,
    delete_when="source.gone",
    update_when=None,
    insert_when=None,
    order_by=(),
)
_COLUMNS = ("key", "count", "gone")
_GONE_EVERY = 3
_OTHERS_AT_ONCE = 100


class Table(Staged):
    """The common parts of both kinds of tables."""

    refusals = (SparkError,)

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.content: Content = {}
        self._twins: set[int] = set()
        self._newest = -1
        self._others = 0
        simulation.events.append(self._somebody_writes)

    def committer(self) -> TableCommitter:
        return TableCommitter(self.folder, self.name, self.prefix, self.table(), "table", MERGE)

    def table(self) -> Any:
        """The product's table, in its own session."""
        raise NotImplementedError

    def others(self, content: Content) -> None:
        """Somebody else commits."""
        raise NotImplementedError

    def number_of(self, name: TransactionName, place: int) -> int:
        """In some worlds a plan produces two rows with the same key, but not when it reruns."""
        number = super().number_of(name, place)
        simulation = self.simulation
        may = place and not simulation.config.deterministic and not simulation.peace
        if may and simulation.dice.chance(simulation.config.rate):
            simulation.note("twins")
            self._twins.add(number)
        return number

    def key_of(self, row: int) -> str:
        """The key of a row, which is the same in each batch."""
        name, place = self.written[row]
        return f"{name.slot}.{0 if row in self._twins else place}"

    def merged(self, content: Content, rows: Sequence[int], plan: MergePlan | None) -> Content:
        """Computes a merge; None for the correct plan.

        Raises:
            SparkError: If several rows have the same key.
        """
        made = dict(content)
        kinds = ["delete", "update", "insert"] if plan is None else [one.kind for one in plan.clauses]
        if len({self.key_of(row) for row in rows}) < len(rows):
            raise SparkError("several rows of the source match one row of the target")
        for row in rows:
            key, gone = self.key_of(row), self._is_gone(row)
            for kind in kinds:
                if kind == "delete" and key in content and gone:
                    del made[key]
                elif kind == "update" and key in content:
                    made[key] = content[key] + 1
                elif kind == "insert" and key not in content and not gone:
                    made[key] = 1
                else:
                    continue
                break
        return made

    def _is_gone(self, row: int) -> bool:
        name, place = self.written[row]
        return (name.batch + place) % _GONE_EVERY == _GONE_EVERY - 1

    def publish(self, rows: Sequence[int], content: Content) -> None:
        """Readers see the result of merging these rows from now on."""
        batches = {self.written[row][0].batch for row in rows}
        if content != self.merged(self.content, rows, None) or min(batches) < self._newest:
            self.simulation.oracle.broken(Violation.NO_FOLD, sorted(batches))
        self._newest = max(batches)
        self.content = content
        for row in rows:
            self.show(row)

    def no_answer(self) -> Exception:
        return SparkError("java.io.IOException: no answer")

    def refused(self) -> Exception:
        return SparkError("java.lang.IllegalStateException")

    def _somebody_writes(self) -> Callable[[], None] | None:
        if self._others >= self.simulation.config.batches:
            return None

        def write() -> None:
            self._others += 1
            self.simulation.say(self.called, "somebody else writes")
            key = "0.0" if "0.0" in self.content else "other"
            self.content = {**self.content, key: self.content.get(key, 0) + _OTHERS_AT_ONCE}
            self.others(self.content)

        return write


class Rows:
    """A DataFrame of files."""

    columns = _COLUMNS
    schema = ()

    def __init__(self, session: Session, urls: Sequence[str], _: object) -> None:
        self.session = session
        self.numbers = session.server.numbers_at(urls)
        self._jdf = self

    def alias(self, _: str) -> Rows:
        return self

    def createOrReplaceTempView(self, _: str) -> None:
        self.session.view = self


class Session:
    """A driver's session."""

    def __init__(self, server: Table, jvm: Any = None) -> None:
        self.server = server
        self.conf = SimpleNamespace(set=self._set)
        self.settings: dict[str, str] = {}
        self.view: Rows | None = None
        self._jvm, self._jsparkSession = jvm, None

    def _set(self, name: str, value: object) -> None:
        self.settings[name] = str(value)


def schema() -> Any:
    return SimpleNamespace(fields=[SimpleNamespace(name=name) for name in _COLUMNS[:2]])


# --- instead of code that needs a JVM ---------------------------------------------------------------------------------


def _repeated(_: object, files: object, rows: Callable[[], Rows]) -> str:
    """Finds what Spark or Arrow would find."""
    read = rows()
    keys = [read.session.server.key_of(row) for row in read.numbers]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    return f"several rows have the key {twice[0]}" if twice else ""


def _is_final(error: Exception) -> bool:
    """No retry helps if a model lacks what the product requests. It would look like a table that is unreachable."""
    if not isinstance(error, SparkError):
        UNDER_WAY[0].oracle.broken(Violation.FAILED, repr(error))
    return False


def _names_in(_: object, text: str) -> list[list[str]]:
    return [found.split(".") for found in re.findall(r"\w+\.\w+", text)]


REPLACED: tuple[tuple[str, str, Any], ...] = (
    ("committer", "is_final", _is_final),
    ("committer", "read_rows", Rows),
    ("committer", "repeated", _repeated),
    ("committer", "schema_in", lambda _: ()),
    ("committer", "_active", lambda _: nullcontext()),
    ("merging", "names_in", _names_in),
)
"""Replacements for the product's modules for tables."""
