"""Lists open transactions on systems, with the verdict of a decision log on each."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from sparkonce.errors import ConfigurationError, SparkonceError
from sparkonce.operate.checkpoint import read_log_of
from sparkonce.operate.systems import NamedSystem, SystemKind
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.view import Decision, LogView
from sparkonce.sinks._shared.orphans import Orphan, token_in
from sparkonce.storage.files import CheckpointFiles

if TYPE_CHECKING:
    from sparkonce.sinks.kafka.orphans import HeldPartition, Target

T = TypeVar("T")


class LogVerdict(str, Enum):
    """The verdict of a query's log on an open transaction."""

    COMMIT = "commit"
    ABORT = "abort"
    UNDER_WAY = "under way"
    NOT_KNOWN = "not known"
    FOREIGN = "foreign"


_NEXT_STEPS = {
    LogVerdict.COMMIT: "Start the query, which commits it; or run sparkonce transactions resolve.",
    LogVerdict.ABORT: "Start the query, which aborts it; or run sparkonce transactions resolve.",
    LogVerdict.UNDER_WAY: "Check that the driver runs and its batch makes progress. If not, start the query again.",
    LogVerdict.NOT_KNOWN: "Find the checkpoint of its query: only its log knows whether the rows are decided.",
    LogVerdict.FOREIGN: "Let its application end it, for example by starting that again. Otherwise wait for its "
    "timeout, or abort it with Kafka's own tool (Kafka 4.1 and later): kafka-transactions.sh --bootstrap-server "
    "SERVERS forceTerminateTransaction --transactionalId {name}",
}
_OF_KIND = {
    "id not visible": "Ask as a user with DESCRIBE on the transactional ids, who can see its owner and its age.",
    "being ended": "Wait: its coordinator is notifying the partitions. If this persists, a broker is unreachable.",
    "marker missing": (
        "Its coordinator has ended it, but the partition was not notified: see docs/kafka.md#readers before you "
        "abort that part with kafka-transactions.sh abort."
    ),
}


def next_step_of(kind: str, verdict: LogVerdict, name: str) -> str:
    """Returns the operator's next step if a transaction of this kind and name stays open."""
    return _OF_KIND.get(kind, _NEXT_STEPS[verdict]).format(name=shlex.quote(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """An open transaction on a system, with the log's verdict and the reason for it.

    For Kafka, `partitions` has the partitions that the transaction has written to, if they were queried.
    """

    system: str
    found: Orphan
    verdict: LogVerdict
    why: str
    partitions: Sequence[HeldPartition] = ()

    @property
    def next_step(self) -> str:
        """The operator's next step if the transaction stays open."""
        return next_step_of(self.found.kind, self.verdict, self.found.name)

    @property
    def blocks(self) -> bool:
        """True if the transaction blocks read_committed readers."""
        return any(one.blocks for one in self.partitions)

    def plain(self) -> dict[str, Any]:
        """Returns the transaction as plain values, for programs."""
        return {"system": self.system, **asdict(self.found), "verdict": self.verdict.value, "why": self.why}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The open transactions on some systems, oldest first on each, and the errors of systems that did not respond."""

    found: Sequence[OpenTransaction] = ()
    silent: Mapping[str, SparkonceError] = field(default_factory=dict)

    def of_query(self, query: str) -> Listing:
        """Returns only the transactions of one query, given its id or short id."""
        short = short_query(query)
        return Listing(found=[one for one in self.found if one.found.query == short], silent=self.silent)

    def on(self, systems: Iterable[str]) -> Listing:
        """Returns only the transactions on some of the systems."""
        wanted = set(systems)
        return Listing(found=[one for one in self.found if one.system in wanted], silent=self.silent)


def list_open(systems: Sequence[NamedSystem], files: CheckpointFiles | None = None) -> Listing:
    """Lists the open transactions of all systems, querying them in parallel, with verdicts from the checkpoint's log.

    Raises:
        ConfigurationError: If a setting of a system is wrong, or a package is missing.
        LogError: If the log cannot be read.
        OSError: If the checkpoint's store cannot be read.
    """
    answers, silent = _ask_all(systems, lambda one: one.list_open())
    # Read the log after the systems have responded, so that it includes any batch decided until then.
    view = read_log_of(files)[1] if files is not None else None
    found = [judge(name, each, view) for name, answer in answers.items() for each in answer]
    return Listing(found=found, silent=silent)


def list_blocking(
    systems: Sequence[NamedSystem], targets: Collection[Target], files: CheckpointFiles | None = None
) -> Listing:
    """Lists every open transaction of any application with rows in the given Kafka topics.

    Raises the same errors as `list_open`, and ConfigurationError if all Kafka systems respond and none has one of the
    topics.
    """
    from sparkonce.sinks.kafka import orphans

    answers, silent = _ask_all(_of_kafka(systems), lambda one: orphans.list_blocking(one.settings, targets))
    seen = frozenset[str]().union(*(one.topics for one in answers.values()))
    if (unseen := sorted({topic for topic, _ in targets} - seen)) and not silent:
        raise ConfigurationError(
            f"There is no topic {unseen[0]!r} that this user can see on {sorted(answers)}.",
            next_step="Correct --topic, name the system that has it, or grant the user DESCRIBE on the topic.",
        )
    view = read_log_of(files)[1] if files is not None else None
    found = [
        replace(judge(name, one.orphan, view), partitions=one.partitions)
        for name, answer in answers.items()
        for one in answer.found
    ]
    return Listing(
        found=found, silent=silent | {name: one.missing for name, one in answers.items() if one.missing is not None}
    )


def targets_of(view: LogView) -> set[Target]:
    """Returns the topics of the Kafka sinks in a query's newest run, each with its cluster's id."""
    newest = view.newest_run
    facts = [dict(one) for _, one in newest.sinks] if newest is not None else []
    return {(one["topic"], one["cluster_id"]) for one in facts if {"topic", "cluster_id"} <= one.keys()}


def judge(system: str, found: Orphan, view: LogView | None) -> OpenTransaction:
    """Judges an open transaction by a query's log, if any. Fills in batch and slot if only the log knows them."""
    verdict, why = _verdict(found, view)
    if found.batch < 0 and (decided := _decided(found, view)) is not None:  # Kafka's ids contain no batch or slot.
        found = replace(found, batch=decided[0].batch, slot=decided[1].slot)
    return OpenTransaction(system=system, found=found, verdict=verdict, why=why)


def _of_kafka(systems: Sequence[NamedSystem]) -> list[NamedSystem]:
    return [one for one in systems if one.kind is SystemKind.KAFKA]


def _ask_all(
    systems: Sequence[NamedSystem], ask: Callable[[NamedSystem], T]
) -> tuple[dict[str, T], dict[str, SparkonceError]]:
    """Queries all systems in parallel. Returns their answers, and the errors of those that did not respond, by name."""
    with ThreadPoolExecutor(max(1, len(systems))) as pool:
        asked = {one.name: pool.submit(ask, one) for one in systems}
    answers: dict[str, T] = {}
    silent: dict[str, SparkonceError] = {}
    for name, answer in asked.items():
        error = answer.exception()
        if isinstance(error, SparkonceError) and not isinstance(error, ConfigurationError):
            silent[name] = error
        else:
            answers[name] = answer.result()
    return answers, silent


def _decided(found: Orphan, view: LogView | None) -> tuple[Decision, Handle] | None:
    """Returns the decision that names the transaction, with its handle."""
    decisions = reversed(view.decisions) if view is not None else ()
    return next(((one, handle) for one in decisions for handle in one.handles if found.is_of(handle)), None)


def _verdict(found: Orphan, view: LogView | None) -> tuple[LogVerdict, str]:
    if not found.query:
        return LogVerdict.FOREIGN, "It is not sparkonce's: another application opened it, and decides its outcome."
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
        return LogVerdict.ABORT, f"An older run has left it; run {newest.token.position} has claimed the query since."
    if token.position < view.floor.position:
        return LogVerdict.NOT_KNOWN, "Its run is so old that the log has forgotten it: nothing ends it automatically."
    return LogVerdict.NOT_KNOWN, "The log does not know its run: one of the two is an old copy."
