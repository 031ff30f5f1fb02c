"""The base of the sinks for tables of SQL databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkonce.arguments import one_of
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks._shared.settings import name_prefix
from sparkonce.sinks.sql.dialect import DIRECT
from sparkonce.sinks.sql.settings import STAGED, TWO_PHASE, UPSERT, Limits, Target

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sinks.sql.dialect import Dialect


class SqlSink(TwoPhaseCommitSink):
    """Writes rows to a table of a database. Subclasses provide the settings and the dialect.

    `decided_conflicts` is an operator's choice for appended rows whose keys now exist in the table: one of `CONFLICTS`,
    or empty to leave these rows staged.
    """

    conninfo: Any
    target: Target
    limits: Limits
    schema: pa.Schema | None = None
    decided_conflicts: str = ""

    def __init__(
        self, name: str, guarantee: Guarantee, commit: str, prefix: str, most_bytes: int, target: Target
    ) -> None:
        super().__init__(name, guarantee)
        self.commit = one_of("commit", commit, (STAGED, TWO_PHASE))
        self.prefix = name_prefix(prefix, name, most_bytes=most_bytes)
        self.target = target
        if target.mode == UPSERT and commit == TWO_PHASE:
            raise ConfigurationError(
                "commit='two_phase' with mode='upsert': two slots, or two attempts of one, that have the same key "
                "would wait for each other's prepared transaction until both give up.",
                next_step="Leave commit out: commit='staged' writes the whole batch in one transaction.",
                setting="commit",
            )

    @property
    def kind(self) -> str:
        """The kind of its transactions: ``commit`` at EXACTLY_ONCE, otherwise `DIRECT`."""
        return self.commit if self.guarantee is Guarantee.EXACTLY_ONCE else DIRECT

    def dialect(self) -> tuple[Dialect, str]:
        """Returns the database's functions, and the server's name in messages. Imports the database's client."""
        raise NotImplementedError

    @property
    def tells_refused(self) -> bool:
        return True

    def writer(self, context: WriterContext) -> SinkWriter:
        """Returns a writer. It connects when the first rows arrive, or reuses an idle connection of this process."""
        from sparkonce.sinks.sql.writer import SqlWriter

        return SqlWriter(self.dialect()[0], self.conninfo, self.target, self.kind, self.limits, context)

    def committer(self) -> SinkCommitter:
        """Returns the committer, which finishes transactions of either kind, regardless of ``commit``."""
        from sparkonce.sinks.sql.committer import SqlCommitter

        dialect, server = self.dialect()
        return SqlCommitter(
            dialect,
            self.conninfo,
            self.name,
            server=server,
            limits=self.limits,
            target=self.target if self.kind == STAGED else None,
            on_conflict=self.decided_conflicts,
        )
