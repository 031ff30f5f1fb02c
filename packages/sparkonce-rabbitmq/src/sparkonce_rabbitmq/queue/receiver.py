"""Decides what is stored from a queue, and what is acknowledged, independently of the connection.

**Messages are stored before they are reported**: a message is in a durable segment before Spark learns of the message.
A batch is a range of segments, so a replay reads the same rows.

**Messages are acknowledged last**: when their batch is finished or, optionally, when their segment is durable. If a
process dies earlier, the server delivers the messages again, and the receiver recognizes their ids.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from sparkonce.errors import CorruptRecordError, SupersededError
from sparkonce.source import PutUnknownError
from sparkonce_rabbitmq.queue.messages import Identify, QueueMessage, id_of, rows_of
from sparkonce_rabbitmq.queue.progress import FinishedSegments, Progress
from sparkonce_rabbitmq.queue.segments import RESTORE, Segment, Segments, arrow_stream, new_token, superseded


class Memory:
    """Remembers the ids of all messages in unfinished batches, and up to ``most`` ids of finished ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, identity: bytes) -> int | None:
        """Returns the number of the segment that contains a message; None if it is not remembered."""
        return self._numbers.get(identity)

    def add(self, identities: Iterable[bytes], number: int) -> None:
        """Remembers the messages of a segment. Segments are added in ascending order."""
        self._numbers.update(dict.fromkeys(identities, number))

    def forget(self, finished: int) -> None:
        """Forgets the oldest ids in excess of the limit, except those from the first unfinished segment on."""
        for identity in list(self._numbers)[: max(0, len(self._numbers) - self._most)]:
            if self._numbers[identity] >= finished:
                return
            del self._numbers[identity]


Acknowledge = Literal["finished", "stored"]

_CLAIMS = 100
_SPARE_SEGMENTS = 16
"""The minimum number of finished segments that are deleted together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """The settings of a receiver; see `read_rabbitmq_queue`. `segment_bytes` limits the bodies in a segment."""

    identify: Identify = "message_id"
    acknowledge: Acknowledge = "finished"
    remember: int = 250_000
    most_ahead: int = 1_000_000
    segment_rows: int = 10_000
    segment_bytes: int = 8 * 2**20
    linger_s: float = 0.2


@dataclass(slots=True)
class _Waiting:
    """Messages that are not stored yet, by id, and the segment being put for them, if there is one."""

    messages: dict[bytes, QueueMessage] = field(default_factory=dict)
    size: int = 0
    since: float = 0.0
    tried: Segment | None = None


class Receiver:
    """Stores messages, and determines which ones may be acknowledged. The consumer calls it from a single thread.

    ``progress`` shows which batches Spark has finished.
    """

    def __init__(
        self,
        segments: Segments,
        progress: Progress,
        settings: ReceiverSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._segments, self._progress, self._settings, self._clock = segments, progress, settings, clock
        self._token = new_token()
        self._memory = Memory(settings.remember)
        self._ids: dict[int, tuple[bytes, ...]] = {}
        self._files_of_ids: list[tuple[str, int]] = []
        self._rows: dict[int, int] = {}
        self._next = self._ahead = 0
        self._finished = FinishedSegments()
        self._held: deque[tuple[int, int]] = deque()
        self._waiting = _Waiting()
        self._lock = threading.Lock()

    def claim(self) -> None:
        """Loads the stored messages, and takes the queue over from an older receiver.

        Raises:
            CorruptRecordError: If messages that a batch has to read are missing.
            SupersededError: If other receivers keep taking the queue over.
            OSError: If the store cannot be read, or if it is unknown whether the claim was stored. Claim again.
        """
        for tries_left in reversed(range(_CLAIMS)):
            self._load()
            try:
                self._put(Segment(token=self._token, ids=()))
                return
            except PutUnknownError as error:
                raise OSError(str(error)) from error
            except SupersededError:  # The older receiver has put a segment since then.
                if not tries_left:
                    raise

    def take(self, tag: int, message: QueueMessage) -> None:
        """Accepts a delivery, whose tag increases within a connection.

        Raises:
            ConfigurationError: If the message cannot be identified.
        """
        waiting, identity = self._waiting, id_of(message, self._settings.identify)
        number = self._memory.find(identity)
        self._held.append((tag, self._next if number is None else number))
        if number is None and identity not in waiting.messages:
            if not waiting.messages:
                waiting.since = self._clock()
            waiting.messages[identity] = message
            waiting.size += len(message.value)

    def is_full(self) -> bool:
        """Returns True if messages must be stored before others are accepted."""
        waiting, settings = self._waiting, self._settings
        has_many = len(waiting.messages) >= settings.segment_rows or waiting.size >= settings.segment_bytes
        return has_many or waiting.tried is not None

    def keep_due(self) -> bool:
        """Stores the waiting messages if there are enough of them, or if they have waited long enough.

        Returns True if no messages are waiting.

        Raises:
            SupersededError: If another receiver has taken the queue over.
            OSError: If the messages are not stored, or if that is unknown. Call the method again.
        """
        waiting = self._waiting
        if not waiting.messages:
            return True
        if not self.is_full() and self._clock() - waiting.since < self._settings.linger_s:
            return False
        self.keep()
        return True

    def keep(self) -> None:
        """Stores the waiting messages; see `keep_due`. After an error, accept no messages until a call succeeds."""
        waiting = self._waiting
        if waiting.tried is None and waiting.messages:
            rows = arrow_stream(rows_of(list(waiting.messages.values())))
            waiting.tried = Segment(token=self._token, ids=tuple(waiting.messages), rows=rows)
        if waiting.tried is not None:
            try:
                self._put(waiting.tried)
            except PutUnknownError as error:
                raise OSError(str(error)) from error
            self._waiting = _Waiting()

    def disconnected(self) -> None:
        """Handles the loss of the connection, after which the server redelivers unacknowledged messages.

        A segment remains if the outcome of its put is unknown, because it may be stored. See `settle`.
        """
        self._held.clear()
        if self._waiting.tried is None:
            self._waiting = _Waiting()

    def settle(self) -> None:
        """Repeats the put of a segment with an unknown outcome. Raises the errors of `keep_due`."""
        if self._waiting.tried is not None:
            self.keep()

    def acknowledge(self) -> int | None:
        """Returns the tag up to which all deliveries may be acknowledged; None if there is nothing new."""
        finished, ahead = self._finished.below, self.ahead()
        all_stored = self._settings.acknowledge == "stored" and ahead <= self._settings.most_ahead
        bound = self._next if all_stored else min(finished, self._next)
        tag = None
        while self._held and self._held[0][1] < bound:
            tag, _ = self._held.popleft()
        return tag

    def poll(self) -> None:
        """Looks up which batches Spark has finished, and deletes segments that will not be read again.

        Raises:
            SupersededError: If another receiver has taken the queue over.
            OSError: If the store is unavailable.
        """
        found = self._progress.poll()
        with self._lock:
            self._ahead -= sum(self._rows.get(number, 0) for number in range(self._finished.below, found.below))
            self._finished = found
        self._segments.check_newest(self._next - 1)
        self._memory.forget(self._finished.below)
        self._clean()

    # --- for Spark's thread -------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Returns the number of the first unfinished segment."""
        with self._lock:
            return self._finished.below

    def end(self, begin: int, most_rows: int | None) -> int:
        """Returns the number after the last segment of the next batch; ``begin`` if there are no rows.

        The batch has at most ``most_rows`` rows, but at least one segment with rows.

        Raises: SupersededError: If another query has since finished that batch and deleted its segments.
        """
        with self._lock:
            if begin < self._next and begin not in self._rows:
                raise superseded(self._segments.files.location)
            rows, end = 0, begin
            for number in range(begin, self._next):
                count = self._rows[number]
                if most_rows is not None and rows and rows + count > most_rows:
                    break
                rows, end = rows + count, number + 1
            return end if rows else begin

    def newest(self) -> int:
        """Returns the number after the last segment."""
        with self._lock:
            return self._next

    def ahead(self) -> int:
        """Returns the number of stored rows in unfinished batches."""
        with self._lock:
            return self._ahead

    # --- how ----------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        with self._lock:  # Another thread may be reading the end while the claim is repeated.
            self._memory, self._ids, self._rows, self._files_of_ids = Memory(self._settings.remember), {}, {}, []
            self._ahead = self._next = 0
        self._finished = self._progress.poll()
        numbers = self._segments.numbers()
        below, behind = self._finished.below, numbers[-1] + 1 if numbers else 0  # The newest segment is never deleted.
        if (below and not numbers) or (numbers and numbers[0] > below):
            raise self._broken(f"has no segment {below}: messages that were received and not yet read are missing")
        if behind < below:  # A segment put there would count as finished, and be acknowledged without being read.
            raise self._broken(f"ends before segment {behind}, and batches have read up to {below}: it is an old copy")
        for name, ids in self._segments.recorded_ids():
            self._files_of_ids.append((name, len(ids)))
            self._memory.add(ids, -1)
        for number in numbers:
            self._learn(number, self._segments.read(number))
        self._next = behind

    def _broken(self, why: str) -> CorruptRecordError:
        return CorruptRecordError(f"{self._segments.files.location} {why}.", next_step=RESTORE)

    def _put(self, segment: Segment) -> None:
        self._segments.put(self._next, segment)
        self._learn(self._next, segment)
        with self._lock:
            self._next += 1

    def _learn(self, number: int, segment: Segment) -> None:
        self._memory.add(segment.ids, number)
        with self._lock:
            self._ids[number] = segment.ids
            self._rows[number] = len(segment.ids)
            self._ahead += len(segment.ids) if number >= self._finished.below else 0

    def _clean(self) -> None:
        spare = [number for number in sorted(self._ids) if number < min(self._finished.spare, self._next - 1)]
        # Never delete up to and including a claim: an older receiver could then put its segment at the claim's
        # position, directly before the remaining segments.
        while spare and not self._ids[spare[-1]]:
            spare.pop()
        if len(spare) < _SPARE_SEGMENTS:
            return
        self._segments.forget([(number, self._ids[number]) for number in spare])
        with self._lock:
            ids = sum(len(self._ids.pop(number)) for number in spare)
            for number in spare:
                del self._rows[number]
        self._files_of_ids.append((f"{spare[0]:012}-{spare[-1]:012}", ids))
        kept, old = 0, []
        for name, count in reversed(self._files_of_ids):
            if kept >= self._settings.remember:
                old.append(name)
            kept += count
        if old:
            self._segments.delete_ids(old)
            self._files_of_ids = [one for one in self._files_of_ids if one[0] not in old]
