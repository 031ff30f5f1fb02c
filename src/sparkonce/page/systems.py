"""Asks a system of the page what it has open, and judges that by the logs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from sparkonce.errors import SparkonceError
from sparkonce.operate.systems import Kind, NamedSystem
from sparkonce.operate.transactions import OpenTransaction, judge, targets_of
from sparkonce.page.checkpoints import WatchedCheckpoint
from sparkonce.page.looks import PageLook, as_ours
from sparkonce.page.state import ShownSystem, ShownTransaction, sentence
from sparkonce.sinks._shared.orphans import Orphan
from sparkonce.sinks.kafka.orphans import HeldPartition, KafkaOrphan, Target, list_blocking, list_held

LOG_WITHIN_S = 20.0
"""A verdict waits so long for its log to be read after the system was asked; else the last reading counts."""
MOST_DESCRIBED = 20
"""The number of transactions of Kafka, the oldest, whose partitions are asked for."""
HELD_WITHIN_S = 20.0
"""No more of them are asked for after this time."""
_SECRET = re.compile(r"pass|secret|token|credential|jaas|key", re.IGNORECASE)
_IN_TEXTS = re.compile(
    r"(?:://[^:/@\s]*:([^@\s]+)@|(?:pass\w*|secret\w*|token\w*|\w*key)\s*=\s*('[^']*'|\"[^\"]*\"|\S+))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unjudged:
    """Transactions that a system has open, of a query whose log is not read yet.

    Attributes:
        found: The transactions.
        answered_ms: When the system said so.
        looks: The number of the look at each checkpoint that reads its log after that.
    """

    found: Sequence[Orphan]
    answered_ms: int
    looks: Sequence[int]


class WatchedSystem(PageLook):
    """A system, asked again and again what it has open. The verdicts of each query wait for its own log alone.

    Args:
        system: The system.
        checkpoints: Those of the page, with the logs.
        every_s: The time between two looks.
        now_ms: The clock.
        changed: See `PageLook`.
    """

    def __init__(
        self,
        system: NamedSystem,
        checkpoints: Sequence[WatchedCheckpoint],
        every_s: float,
        now_ms: Callable[[], int],
        changed: threading.Condition,
    ) -> None:
        super().__init__(every_s, now_ms, changed)
        self._system, self._checkpoints = system, checkpoints
        self._unjudged: dict[str, Unjudged] = {}  # by the short form of the query's id
        self._judged: dict[str, tuple[int, Sequence[OpenTransaction]]] = {}  # with the time of the system's answer
        self._held: Mapping[str, Sequence[HeldPartition]] = {}
        self._seen_ms: dict[str, int] = {}
        self._answered_ms: int | None = None
        self._error: SparkonceError | None = None

    def shown(self) -> ShownSystem:
        """Returns what is known of it now."""
        now_ms, error, held = self.now_ms(), self._error, self._held
        with self.changed:
            judged = list(self._judged.values())
        return ShownSystem(
            name=self._system.name,
            kind=self._system.kind.value,
            answered_ms=self._answered_ms,
            silent_s=self.silent_s,
            error=without_secrets(error.message, self._system) if error is not None else "",
            error_step=without_secrets(sentence(error.next_step), self._system) if error is not None else "",
            open=[
                ShownTransaction.of(one, (now_ms - answered_ms) / 1000, held.get(one.found.name, ()))
                for answered_ms, found in judged
                for one in found
            ],
        )

    def look(self) -> None:
        """Asks it. The verdicts follow in the pause, as soon as their logs are read."""
        try:
            found = self._system.list_open()
            blockers = self._blockers()
            answered_ms, looks = self.now_ms(), [one.next_look() for one in self._checkpoints]
            held = {one.name: parts for one, parts in blockers}
            self._held = held | self._held_by([one for one in found if one.name not in held])
            listed = {one.name for one in found}
            found += [one for one, _ in blockers if one.name not in listed]
            self._answered_ms, self._error = answered_ms, None
        except Exception as error:  # noqa: BLE001 - of any client: the page shows it
            self._error = as_ours(error, f"System {self._system.name!r} cannot be asked")
            return
        theirs: dict[str, list[Orphan]] = {}
        for one in found:
            theirs.setdefault(one.query, []).append(one)
        self._unjudged = {  # what waits already comes first, or a slow log would never be read in time
            query: self._unjudged.get(query) or Unjudged(found=of_query, answered_ms=answered_ms, looks=looks)
            for query, of_query in theirs.items()
        }
        with self.changed:
            self._judged = {query: known for query, known in self._judged.items() if query in theirs}

    def _pause(self, pause_s: float) -> None:
        until_s = time.monotonic() + pause_s
        while not self._is_closed and (left_s := until_s - time.monotonic()) > 0:
            with self.changed:
                self.changed.wait_for(lambda: self._is_closed or self._with_logs(), left_s)
            for query in self._with_logs():
                self._judge(query, self._unjudged.pop(query))

    def _with_logs(self) -> Sequence[str]:
        """Returns the queries whose logs were read after the system was asked, or are waited for no longer."""
        return [query for query, one in self._unjudged.items() if self._has_log(query, one)]

    def _has_log(self, query: str, waits: Unjudged) -> bool:
        if not query or self.now_ms() - waits.answered_ms > LOG_WITHIN_S * 1000:
            return True  # what has no query is another application's
        return all(
            one.has_looked(number) or one.silent_s > LOG_WITHIN_S
            for one, number in zip(self._checkpoints, waits.looks, strict=True)
            if one.may_be_of(query)
        )

    def _judge(self, query: str, waits: Unjudged) -> None:
        views = [one.view for one in self._checkpoints if one.view is not None and one.is_of(query)]
        newest = max(views, key=lambda view: view.end, default=None)  # of several copies
        judged = [judge(self._system.name, one, newest) for one in waits.found]
        with self.changed:
            self._judged[query] = (waits.answered_ms, judged)

    def _blockers(self) -> list[tuple[KafkaOrphan, Sequence[HeldPartition]]]:
        """Asks for the open transactions in the topics of the page's queries, whosever they are."""
        views = [one.view for one in self._checkpoints if one.view is not None]
        targets = set[Target]().union(*map(targets_of, views))
        if self._system.kind is not Kind.KAFKA or not targets:
            return []
        blockers = list_blocking(self._system.settings, targets).found
        now_ms = self.now_ms()
        self._seen_ms = {one.orphan.name: self._seen_ms.get(one.orphan.name, now_ms) for one in blockers}
        return [  # where nobody says since when one is open, it is as old as the page knows it
            (
                replace(one.orphan, age_s=max(one.orphan.age_s, (now_ms - self._seen_ms[one.orphan.name]) / 1000)),
                one.partitions,
            )
            for one in blockers
        ]

    def _held_by(self, found: Sequence[Orphan]) -> dict[str, Sequence[HeldPartition]]:
        """Asks for the partitions of the oldest transactions of Kafka; those that cannot be told are left out."""
        held: dict[str, Sequence[HeldPartition]] = {}
        give_up_at_s = time.monotonic() + HELD_WITHIN_S
        for one in found[:MOST_DESCRIBED]:
            if isinstance(one, KafkaOrphan) and time.monotonic() < give_up_at_s:
                with suppress(SparkonceError):
                    held[one.name] = list_held(self._system.settings, one)
        return held


def without_secrets(text: str, system: NamedSystem) -> str:
    """Returns a message without what may be a secret in a system's settings. Messages have none: this makes sure."""
    settings = system.settings
    pairs = settings.items() if isinstance(settings, Mapping) else []
    found = [str(value) for name, value in pairs if _SECRET.search(name)]
    for one in [settings] if isinstance(settings, str) else [str(value) for _, value in pairs]:
        found += [part.strip("'\"") for match in _IN_TEXTS.finditer(one) for part in match.groups() if part]
    for secret in sorted(filter(None, found), key=len, reverse=True):
        text = text.replace(secret, "…")
    return text
