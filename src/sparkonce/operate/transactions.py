"""Lists what is open on systems, and says what a decision log has decided about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from sparkonce.checkpoint.files import CheckpointFiles
from sparkonce.errors import ConfigurationError, SparkonceError
from sparkonce.operate.checkpoint import read_log_of
from sparkonce.operate.systems import NamedSystem
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.view import Decision, LogView
from sparkonce.sinks._shared.orphans import Orphan, token_in


class LogVerdict(str, Enum):
    """The verdict of a query's log on an open transaction."""

    COMMIT = "commit"
    ABORT = "abort"
    UNDER_WAY = "under way"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """An open transaction of a system, with the log's verdict.

    Attributes:
        system: The system's name, as the operator gave it.
        found: What the system says of it.
        verdict: What is to come of it.
        why: The reason of the verdict, a sentence.
    """

    system: str
    found: Orphan
    verdict: LogVerdict
    why: str

    def plain(self) -> dict[str, Any]:
        """Returns it for programs."""
        return {"system": self.system, **asdict(self.found), "verdict": self.verdict.value, "why": self.why}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The open transactions of some systems.

    Attributes:
        found: The transactions, the oldest first of each system.
        silent: The errors of systems that did not answer, by their names.
    """

    found: Sequence[OpenTransaction] = ()
    silent: Mapping[str, SparkonceError] = field(default_factory=dict)

    def of_query(self, query: str) -> Listing:
        """Returns those of one query alone, by its id or the short form of it."""
        short = short_query(query)
        return Listing(found=[one for one in self.found if one.found.query == short], silent=self.silent)

    def on(self, systems: Iterable[str]) -> Listing:
        """Returns those on some of the systems alone."""
        wanted = set(systems)
        return Listing(found=[one for one in self.found if one.system in wanted], silent=self.silent)


def list_open(systems: Sequence[NamedSystem], files: CheckpointFiles | None = None) -> Listing:
    """Asks all systems at once.

    Args:
        systems: The systems.
        files: Of a checkpoint, whose log gives the verdicts; None for none.

    Raises:
        ConfigurationError: if a setting of a system is wrong, or a package is missing.
        LogError: if the log cannot be read.
        OSError: if the checkpoint's store cannot be read.
    """
    with ThreadPoolExecutor(max(1, len(systems))) as pool:
        asked = [(one.name, pool.submit(one.list_open)) for one in systems]
    # Read after the systems were asked, so that it has a batch that was decided meanwhile.
    view = read_log_of(files)[1] if files is not None else None
    found: list[OpenTransaction] = []
    silent: dict[str, SparkonceError] = {}
    for name, answer in asked:
        error = answer.exception()
        if isinstance(error, SparkonceError) and not isinstance(error, ConfigurationError):
            silent[name] = error
        else:
            found.extend(judge(name, each, view) for each in answer.result())
    return Listing(found=found, silent=silent)


def judge(system: str, found: Orphan, view: LogView | None) -> OpenTransaction:
    """Says what is to come of an open transaction, and which batch and slot it is of if the log alone knows.

    Args:
        system: The system's name.
        found: What the system says of it.
        view: The log of some query; None if none was given.
    """
    verdict, why = _verdict(found, view)
    if found.batch < 0 and (decided := _decided(found, view)) is not None:  # of Kafka, whose ids do not say it
        found = replace(found, batch=decided[0].batch, slot=decided[1].slot)
    return OpenTransaction(system=system, found=found, verdict=verdict, why=why)


def _decided(found: Orphan, view: LogView | None) -> tuple[Decision, Handle] | None:
    """Returns the decision that has the transaction, with its handle."""
    decisions = reversed(view.decisions) if view is not None else ()
    return next(((one, handle) for one in decisions for handle in one.handles if found.is_of(handle)), None)


def _verdict(found: Orphan, view: LogView | None) -> tuple[LogVerdict, str]:
    newest = view.newest_run if view is not None else None
    if view is None or newest is None or short_query(newest.query) != found.query:
        return LogVerdict.NOT_KNOWN, "No log of its query is given."
    if (decided := _decided(found, view)) is not None:
        decision, handle = decided
        if handle.key in decision.void:
            return LogVerdict.ABORT, f"Batch {decision.batch} is decided, and this part is void: it lost rows."
        return LogVerdict.COMMIT, f"Batch {decision.batch} is decided."
    token = token_in(found.run)
    if token == newest.token:
        if any(one.batch == found.batch and one.token == token for one in view.decisions):
            return LogVerdict.ABORT, f"Batch {found.batch} is decided with another copy of its slot."
        return LogVerdict.UNDER_WAY, "The newest run has it open. If no driver runs, the next start aborts it."
    if any(run.token == token for run in view.runs):
        return (
            LogVerdict.ABORT,
            f"An older run has left it; run {newest.token.position} has claimed the query since.",
        )
    if token.position < view.floor.position:
        return LogVerdict.NOT_KNOWN, "Its run is so old that the log has forgotten it: nobody ends it."
    return LogVerdict.NOT_KNOWN, "The log does not know its run: one of the two is an old copy."
