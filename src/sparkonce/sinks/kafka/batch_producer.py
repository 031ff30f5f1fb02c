"""A Kafka producer that accepts Arrow batches, with one call into librdkafka instead of Python code for each row.

confluent-kafka's ``produce`` takes a call and a Python object for each row. Here, librdkafka reads the rows directly
from Arrow's buffers, without copying them (docs/benchmark.md has the figures). `BorrowedBuffers` keeps the buffers
alive until the rows have been delivered. librdkafka's batch call supports neither headers nor timestamps, so rows with
them go through confluent-kafka's producer. `BatchProducer` has the same methods as that producer, and raises the same
errors. `BatchProducer` counts deliveries from the brokers' reports.

`client_log` reduces librdkafka's log, in which each producer reports an unreachable broker several times a second.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException

from sparkonce.sinks.kafka import librdkafka as rd
from sparkonce.sinks.kafka.librdkafka import Library, librdkafka
from sparkonce.sinks.kafka.partitioner import Numbers, Partitioner
from sparkonce.sinks.kafka.rows import BY_ROW, bounds
from sparkonce.sinks.kafka.settings import is_true, queue_bytes

_Messages = np.ndarray[Any, np.dtype[np.void]]

_EVENTS = rd.DELIVERIES | rd.LOG | rd.ERROR | rd.STATISTICS
_SLICE_S = 0.05
"""An abort that waits for its last delivery report processes pending reports at this interval, in seconds."""

_LAST_BYTES = 1 << 20
_QUIET_S = 0.02
"""A flush first waits until about `_LAST_BYTES` per partition are queued, or nothing arrives for this many seconds.

Only then does the flush send incomplete requests: while librdkafka flushes, its threads spin as long as a partition has
rows that wait for an earlier request.
"""

_NOT_HERE = "sasl.oauthbearer.metadata.authentication.type"
"""The setting for a login that confluent-kafka performs in Python, so that `BatchProducer` cannot."""

_METADATA_LIMIT_S = 1.0

_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
"""Python's ``logging`` level for each level of syslog, as confluent-kafka maps them."""

_ACQUIRED = re.compile(r"Acquired PID\{Id:(\d+),Epoch:(\d+)\}")
"""The line in librdkafka's log ``eos`` that shows a new producer id (rd_kafka_idemp_pid_update, unchanged since 1.0).

Statistics also contain the id, but only after their next interval, and they are far more expensive.
"""

_DEBUG = 7

_empty = ctypes.create_string_buffer(1)

TopicPartition = tuple[str, int]
"""A topic and one of its partitions."""

PAUSE_S = 1.0
_DEBUG_ONLY = re.compile("TXNERR |.*Coordinator load in progress: retrying")
"""Log lines of librdkafka that tell the user nothing new.

The task attempt raises its own error about a transaction that failed. After ``retrying``, there is nothing to do.
"""
_ABOUT = re.compile(r"^(?P<what>\S+) \[[^]]*\] \[thrd:(?P<broker>[^]]*)\]")
"""The parts of a librdkafka log line that name the event, the producer and the broker."""


class Listener(Protocol):
    """Receives what a producer reports while it is polled."""

    def on_acknowledged(self, rows: int) -> None:
        """Called when rows have been delivered."""

    def on_refused(self, error: KafkaError, topic: str, partition: int, size: int) -> None:
        """Called when a row was not delivered; ``size`` is the size of its key and value in bytes."""

    def on_error(self, error: KafkaError) -> None:
        """Called with an error of the whole client."""

    def on_stats(self, text: str) -> None:
        """Called with new statistics, as JSON."""

    def on_identity(self, producer_id: int, epoch: int) -> None:
        """Called with a producer id and epoch assigned by a broker."""


def takes_batches(settings: Mapping[str, Any]) -> bool:
    """Returns True if a `BatchProducer` supports these settings. Python callbacks need confluent-kafka's producer."""
    plain = all(isinstance(value, str | int | float | None) for value in settings.values())
    return plain and _NOT_HERE not in settings and librdkafka() is not None


class BatchProducer:
    """A librdkafka producer. Its listener is called in the thread that calls `poll` or `flush`.

    Raises:
        KafkaException: If librdkafka rejects a setting.
    """

    def __init__(self, settings: Mapping[str, Any], listener: Listener) -> None:
        library = librdkafka()
        if library is None:
            raise RuntimeError("librdkafka's functions cannot be found.")
        self._library: Library = library
        self._listener = listener
        self._topics: dict[str, int] = {}
        self._partitioner = Partitioner(settings)
        is_idempotent = bool(settings.get("transactional.id")) or is_true(settings.get("enable.idempotence", False))
        self._borrowed = BorrowedBuffers(queue_bytes(settings), in_order=is_idempotent)
        # If any debug context is set, librdkafka raises its log level to debug.
        self._shown = _DEBUG if settings.get("debug") else min(_DEBUG - 1, int(settings.get("log_level", _DEBUG - 1)))
        self._polling = threading.Lock()  # The worker's background thread polls, too.
        self._producer: int | None = self._made(settings)
        ctypes.pythonapi.Py_IncRef(
            ctypes.py_object(self._borrowed)
        )  # Unless the producer is closed, its log queue outlives the Python interpreter.
        self._events = library.queue_get_main(self._handle)
        library.set_log_queue(self._handle, None)

    def __len__(self) -> int:
        """Returns the number of undelivered rows and of events waiting for `poll`."""
        return int(self._library.outq_len(self._handle))

    def produce(self, topic: str, rows: pa.RecordBatch) -> int:
        """Queues rows, and returns their number.

        librdkafka reads the values from Arrow's memory, which stays alive until they are delivered. librdkafka copies
        keys, and the values of rows whose partition it chooses.

        Raises:
            KafkaException: If librdkafka rejects a row. Other rows may be queued.
            BufferError: If its queue is full.
        """
        if BY_ROW.intersection(rows.schema.names):
            raise ValueError(f"Rows with {sorted(BY_ROW)} cannot be sent by the batch.")
        if not rows.num_rows:
            return 0
        messages = np.zeros(rows.num_rows, rd.MESSAGE)
        for name, address, size in (("value", "payload", "len"), ("key", "key", "key_len")):
            if name in rows.schema.names:
                _point(messages, address, size, rows.column(name))
        partitions = self._partitions(topic, rows, messages)
        if isinstance(partitions, int):
            return self._produce(topic, partitions, messages, rows)
        # Make one call per partition, because librdkafka never frees a row for a partition that does not exist. Rows
        # whose partition librdkafka chooses must keep their order relative to the other rows, because both may go to
        # the same partition.
        runs = np.cumsum(np.diff(partitions == rd.CHOSEN_PARTITION, prepend=False))
        order = np.lexsort((partitions, runs))
        starts = np.flatnonzero(np.diff(runs[order]) | np.diff(partitions[order])) + 1
        numbers, parts = partitions[order[[0, *starts]]], np.split(messages[order], starts)
        return sum(self._produce(topic, int(number), part, rows) for number, part in zip(numbers, parts, strict=True))

    def _produce(self, topic: str, partition: int, messages: _Messages, rows: pa.RecordBatch) -> int:
        handle, flags = self._topic(topic), rd.COPY_PAYLOAD
        if partition == rd.CHOSEN_PARTITION:
            self._borrowed.keep()  # These rows may go to any partition, so reports do not show which memory is free.
        elif self._borrowed.in_order:
            with self._polling:
                memory = self._borrowed.room_for(rows.column("value"))
                messages["private"] = self._borrowed.borrow((topic, partition), memory, len(messages))
            messages["private"] += np.arange(len(messages), dtype=np.uint64)
            flags = rd.COPY_PAYLOAD if memory is None else 0
        taken = self._library.produce_batch(handle, partition, flags, messages.ctypes.data, len(messages))
        if taken < len(messages):
            self._borrowed.keep()
            code = int(messages["err"][np.flatnonzero(messages["err"])[0]])
            if code == KafkaError._QUEUE_FULL:
                raise BufferError("Local: Queue full")
            raise KafkaException(KafkaError(code))
        return int(taken)

    def _partitions(self, topic: str, rows: pa.RecordBatch, messages: _Messages) -> Numbers | int:
        """Returns the partition of each row or of all rows; `CHOSEN_PARTITION` if librdkafka must choose it."""
        unnamed = np.ones(len(messages), bool)
        if not _is_empty(rows, "partition"):
            unnamed = rows.column("partition").is_null().to_numpy(zero_copy_only=False)
            named: Numbers = pc.fill_null(rows.column("partition"), rd.CHOSEN_PARTITION).to_numpy()
            if not unnamed.any():
                return named
        if self._partitioner.chooses and not self._partitioner.knows(topic):
            self._learn(topic)
        keyless, chosen = unnamed & (messages["key"] == 0), None
        if keyless.any():
            chosen = self._partitioner.without_key(topic, int(messages["len"][keyless].sum()))
        free = rd.CHOSEN_PARTITION if chosen is None else chosen
        if keyless.all():
            return free
        hashed = None if _is_empty(rows, "key") else self._partitioner.by_key(topic, rows.column("key"))
        partitions = np.where(keyless, free, rd.CHOSEN_PARTITION if hashed is None else hashed)
        return partitions if unnamed.all() else np.where(unnamed, partitions, named)

    def _learn(self, topic: str) -> None:
        try:
            self.list_topics(topic, _METADATA_LIMIT_S)
        except KafkaException:
            self._partitioner.learn_nothing(topic)  # librdkafka keeps retrying

    def begin_anew(self) -> None:
        """Forgets the partitions' leaders, and that a row has failed."""
        self._partitioner.forget()
        with self._polling:
            if not len(self):
                self._borrowed.renew()

    def poll(self, timeout_s: float) -> None:
        """Waits for an event, and passes all pending events to the listener.

        Raises:
            KafkaException: If the producer has failed permanently.
        """
        # Only one thread may poll at a time, so that reports stay in order. Another thread may be polling now.
        if not self._polling.acquire(blocking=timeout_s > 0, timeout=timeout_s or -1):
            return
        try:
            while event := self._library.queue_poll(self._handle and self._events, int(timeout_s * 1000)):
                try:
                    self._tell(event)
                finally:
                    self._library.event_destroy(event)
                timeout_s = 0.0
        finally:
            self._polling.release()

    def flush(self, timeout_s: float) -> None:
        """Sends the queued rows, and waits until all are delivered or the time is up. Raises what `poll` raises."""
        until_s = time.monotonic() + timeout_s
        quiet_s = min(_QUIET_S, timeout_s / 2)  # leave at least half of the time for sending
        self.poll(0)
        queued = -1
        while queued != len(self) and self._borrowed.borrowed_bytes > _LAST_BYTES * (1 + self._borrowed.partitions()):
            queued = len(self)
            self.poll(max(0.0, min(quiet_s, until_s - time.monotonic())))
        left_s = until_s - time.monotonic()
        if not len(self) or left_s <= 0:
            return
        # Flush in another thread: `flush` returns once the queue is empty, and until then this thread must process
        # reports.
        sending = threading.Thread(target=self._library.flush, args=(self._handle, int(left_s * 1000)), daemon=True)
        sending.start()
        try:
            while len(self) and (left_s := until_s - time.monotonic()) > 0:
                self.poll(min(_SLICE_S, left_s))  # The worker's background thread may have processed the last report.
        finally:
            sending.join()

    def init_transactions(self, timeout_s: float) -> None:
        self._check(self._library.init_transactions(self._handle, int(timeout_s * 1000)))

    def begin_transaction(self) -> None:
        self._check(self._library.begin_transaction(self._handle))

    def abort_transaction(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            slice_s = min(_SLICE_S, max(0.0, deadline - time.monotonic()))
            error = self._library.taken_error(self._library.abort_transaction(self._handle, int(slice_s * 1000)))
            if error is None:
                return
            if not error.retriable() or time.monotonic() >= deadline:
                raise KafkaException(error)
            self.poll(0)  # An abort waits until the dropped rows have been reported.

    def list_topics(self, topic: str, timeout_s: float) -> None:
        """Fetches a topic's partitions from a broker."""
        found = ctypes.POINTER(rd.Metadata)()
        code = self._library.metadata(self._handle, 0, self._topic(topic), ctypes.byref(found), int(timeout_s * 1000))
        if code != rd.OK:
            raise KafkaException(KafkaError(code))
        try:
            for told in found.contents.topics[: found.contents.topic_count]:
                led = [one.number for one in told.partitions[: told.count] if one.leader >= 0]
                self._partitioner.learn(rd.text(told.name), told.count, led)
        finally:
            self._library.metadata_destroy(found)

    def purge(self) -> None:
        """Drops the queued rows."""
        self._library.purge(self._handle, rd.PURGE_ALL)

    def destroy(self) -> None:
        """Ends the producer without a request to the broker."""
        with self._polling:
            producer, self._producer = self._handle, None
        while self._topics:
            self._library.topic_destroy(self._topics.popitem()[1])
        self._library.queue_destroy(self._events)
        self._library.destroy(producer)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._borrowed))
        self._borrowed.renew()  # A destroyed producer no longer reads any memory of rows.

    @property
    def _handle(self) -> int:
        if self._producer is None:
            raise RuntimeError("The Kafka producer has ended.")
        return self._producer

    def _topic(self, name: str) -> int:
        if name not in self._topics:
            # librdkafka reads a name only up to its first NUL, and returns null for a name that is too long.
            handle = None if "\0" in name else self._library.topic_new(self._handle, name.encode(), None)
            if not handle:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "Kafka has no topics of such a name"))
            self._topics[name] = handle
        return self._topics[name]

    def _made(self, settings: Mapping[str, Any]) -> int:
        library, text = self._library, ctypes.create_string_buffer(rd.TEXT_BYTES)
        conf = library.conf_new()
        library.conf_set_events(conf, _EVENTS)
        debug = [str(settings.get("debug") or ""), "eos" if settings.get("transactional.id") else ""]
        options = {
            **settings,
            "debug": ",".join(filter(None, debug)) or None,
            "delivery.report.only.error": False,
            "log.queue": True,
        }
        texts = [(name.encode(), str(value).encode()) for name, value in options.items() if value is not None]
        taken = all(library.conf_set(conf, *pair, text, rd.TEXT_BYTES) == rd.OK for pair in texts)
        producer = library.new(rd.PRODUCER, conf, text, rd.TEXT_BYTES) if taken else None
        if not producer:
            library.conf_destroy(conf)
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode()))
        return int(producer)

    def _check(self, error: int | None) -> None:
        if (found := self._library.taken_error(error)) is not None:
            raise KafkaException(found)

    def _tell(self, event: int) -> None:
        library, kind = self._library, self._library.event_type(event)
        if kind == rd.DELIVERIES:
            self._tell_deliveries(event)
        elif kind == rd.STATISTICS:
            self._listener.on_stats(library.event_stats(event).decode())
        elif kind == rd.LOG:
            self._tell_log(event)
        elif kind == rd.ERROR:
            text, fatal = rd.text(library.event_error_string(event)), bool(library.event_error_is_fatal(event))
            error = KafkaError(library.event_error(event), text, fatal)
            if fatal:
                raise KafkaException(error)
            self._listener.on_error(error)

    def _tell_log(self, event: int) -> None:
        facility, line, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
        self._library.event_log(event, ctypes.byref(facility), ctypes.byref(line), ctypes.byref(level))
        if level.value <= self._shown:
            name, what, said = map(rd.text, (self._library.name(self._handle), facility.value, line.value))
            client_log.log(_LEVELS[level.value], "%s [%s] %s", what, name, said)
        if facility.value == b"GETPID" and (acquired := _ACQUIRED.search(rd.text(line.value))):
            self._listener.on_identity(*map(int, acquired.groups()))

    def _tell_deliveries(self, event: int) -> None:
        """Counts rows of one partition with the same outcome. Brokers may report single rows instead (KIP-467)."""
        library = self._library
        if library.event_error(event) == rd.OK:
            rows = library.event_message_count(event)  # the next call removes a row
            if first := library.event_message_next(event):
                self._borrowed.give_back(first.contents.private, rows)
            self._listener.on_acknowledged(rows)
            return
        self._borrowed.keep()
        while message := library.event_message_next(event):
            row = message.contents
            if row.err == rd.OK:
                self._listener.on_acknowledged(1)
                continue
            topic = library.topic_name(row.topic).decode()
            self._listener.on_refused(KafkaError(row.err), topic, row.partition, row.len + row.key_len)


def _is_empty(rows: pa.RecordBatch, name: str) -> bool:
    return name not in rows.schema.names or rows.column(name).null_count == rows.num_rows


def _point(messages: _Messages, address: str, size: str, column: pa.Array) -> None:
    """Points messages into the buffers of a string or binary column. A null has no address; an empty string has one."""
    limits, data = bounds(column)
    start = data.address if data is not None and data.address else ctypes.addressof(_empty)
    messages[address] = limits[:-1]
    messages[address] += np.uint64(start)
    messages[size] = np.diff(limits)
    if column.null_count:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        messages[address][nulls] = messages[size][nulls] = 0


@dataclass(slots=True)
class _Borrowed:
    """Rows passed to librdkafka in one call. Row `due` is the next to be reported; row `end` is the first after them.

    The memory is None for copied rows.
    """

    due: int
    end: int
    memory: pa.Buffer | None


class BorrowedBuffers:
    """The memory of rows that librdkafka still reads. A delivery report releases the memory of its rows.

    All rows are numbered. An idempotent producer sends and reports the rows of a partition in the order it received
    them. A report covers many rows, and begins with the oldest unreported row of its partition. If a report begins with
    any other row, or if a row fails, no memory is released until `renew`.

    Args:
        limit_bytes: Once this many bytes are in use, further rows are copied.
        in_order: False for a producer that is not idempotent, for which all rows are copied.
    """

    def __init__(self, limit_bytes: int, *, in_order: bool = True) -> None:
        self._limit_bytes = limit_bytes
        self._may_borrow = in_order
        self._next = 1
        self.renew()

    def renew(self) -> None:
        """Forgets all rows. Called when no row is in flight and every report has been passed to `give_back`."""
        self.in_order = self._may_borrow
        self._lines: dict[TopicPartition, deque[_Borrowed]] = {}
        self._due: dict[int, deque[_Borrowed]] = {}
        self._uses: dict[int, list[pa.Buffer]] = {}
        self.borrowed_bytes = 0

    def partitions(self) -> int:
        return sum(map(bool, self._lines.values()))

    def room_for(self, column: pa.Array) -> pa.Buffer | None:
        """Returns the memory block that contains a string or binary column; None if keeping it exceeds the limit."""
        memory: pa.Buffer | None = column.buffers()[2]
        while memory is not None and memory.parent is not None:
            memory = memory.parent  # all columns of a batch from Spark share one block of memory
        if memory is None or memory.address in self._uses or not self._uses:
            return memory
        return memory if self.borrowed_bytes + memory.size <= self._limit_bytes else None

    def borrow(self, partition: TopicPartition, memory: pa.Buffer | None, rows: int) -> int:
        """Registers the next rows of a partition, keeps their memory alive, and returns the number of the first row."""
        borrowed = _Borrowed(self._next, self._next + rows, memory)
        self._next = borrowed.end
        line = self._lines.setdefault(partition, deque())
        if not line:
            self._due[borrowed.due] = line
        line.append(borrowed)
        if memory is not None:
            uses = self._uses.setdefault(memory.address, [])
            self.borrowed_bytes += 0 if uses else memory.size
            uses.append(memory)
        return borrowed.due

    def give_back(self, first: int, rows: int) -> None:
        """Records the delivery of this many rows of a partition, beginning with the row of this number."""
        if not self.in_order:
            return
        line = self._due.pop(first, deque())
        while rows and line:
            borrowed = line[0]
            told = min(rows, borrowed.end - borrowed.due)
            borrowed.due, rows = borrowed.due + told, rows - told
            if borrowed.due == borrowed.end:
                self._release(line.popleft())
        if rows:
            self.keep()
        elif line:
            self._due[line[0].due] = line

    def keep(self) -> None:
        """Stops releasing memory, because librdkafka may still read any of it."""
        self.in_order = False

    def _release(self, borrowed: _Borrowed) -> None:
        if borrowed.memory is None:
            return
        uses = self._uses[borrowed.memory.address]
        uses.pop()
        if not uses:
            del self._uses[borrowed.memory.address]
            self.borrowed_bytes -= borrowed.memory.size


class OncePerBroker(logging.Filter):
    """Lets one log line per second pass for each kind of event and broker, across all producers of the process."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._said: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns True if a line is shown. The next line shown includes the number of suppressed lines."""
        text = record.getMessage()
        if _DEBUG_ONLY.match(text) and not client_log.isEnabledFor(logging.DEBUG):
            return False
        about = _ABOUT.match(text)
        kind = " ".join(about.groups()) if about is not None else text
        said_s, left_out = self._said.get(kind, (-PAUSE_S, 0))
        if self._now() - said_s < PAUSE_S:
            self._said[kind] = said_s, left_out + 1
            return False
        self._said[kind] = self._now(), 0
        if left_out:
            record.msg, record.args = f"{text} ({left_out} like it left out)", ()
        return True


client_log = logging.getLogger("sparkonce.librdkafka")
client_log.addFilter(OncePerBroker())
