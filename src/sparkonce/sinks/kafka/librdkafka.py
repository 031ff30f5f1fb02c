"""The librdkafka functions that `sparkonce.sinks.kafka.batch_producer` calls, in the copy that confluent-kafka uses.

confluent-kafka's ``cimpl`` module is linked with librdkafka. The dynamic linker also looks up names in the libraries
that a library is linked with, so librdkafka's functions can be called through ``cimpl``. Only functions and structures
of librdkafka's public interface (``rdkafka.h``) are used here, which stays compatible within a major version.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, cimpl

TEXT_BYTES = 512

OK = 0
PRODUCER = 0
CHOSEN_PARTITION = -1
COPY_PAYLOAD = 0x2
PURGE_ALL = 0x1 | 0x2
DELIVERIES, LOG, ERROR, STATISTICS = 0x1, 0x4, 0x8, 0x40
"""The kinds of events that a producer emits."""


class Message(ctypes.Structure):
    """``rd_kafka_message_t``, with integers for pointers."""

    _fields_ = (
        ("err", c_int),
        ("topic", c_uint64),
        ("partition", c_int32),
        ("payload", c_uint64),
        ("len", c_size_t),
        ("key", c_uint64),
        ("key_len", c_size_t),
        ("offset", ctypes.c_int64),
        ("private", c_uint64),
    )


MESSAGE = np.dtype(Message)
"""`Message` as a NumPy type."""


class Partition(ctypes.Structure):
    """``rd_kafka_metadata_partition_t``."""

    _fields_ = (
        ("number", c_int32),
        ("err", c_int),
        ("leader", c_int32),
        ("replica_count", c_int),
        ("replicas", c_void_p),
        ("in_sync_count", c_int),
        ("in_sync", c_void_p),
    )


class Topic(ctypes.Structure):
    """``rd_kafka_metadata_topic_t``."""

    _fields_ = (("name", c_char_p), ("count", c_int), ("partitions", POINTER(Partition)), ("err", c_int))


class Metadata(ctypes.Structure):
    """``rd_kafka_metadata_t``."""

    _fields_ = (
        ("broker_count", c_int),
        ("brokers", c_void_p),
        ("topic_count", c_int),
        ("topics", POINTER(Topic)),
        ("broker", c_int32),
        ("broker_name", c_char_p),
    )


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "abort_transaction": (c_void_p, (c_void_p, c_int)),
    "begin_transaction": (c_void_p, (c_void_p,)),
    "conf_destroy": (None, (c_void_p,)),
    "conf_new": (c_void_p, ()),
    "conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "conf_set_events": (None, (c_void_p, c_int)),
    "destroy": (None, (c_void_p,)),
    "error_code": (c_int, (c_void_p,)),
    "error_destroy": (None, (c_void_p,)),
    "error_is_fatal": (c_int, (c_void_p,)),
    "error_is_retriable": (c_int, (c_void_p,)),
    "error_string": (c_char_p, (c_void_p,)),
    "error_txn_requires_abort": (c_int, (c_void_p,)),
    "event_destroy": (None, (c_void_p,)),
    "event_error": (c_int, (c_void_p,)),
    "event_error_is_fatal": (c_int, (c_void_p,)),
    "event_error_string": (c_char_p, (c_void_p,)),
    "event_log": (c_int, (c_void_p, POINTER(c_char_p), POINTER(c_char_p), POINTER(c_int))),
    "event_message_count": (c_size_t, (c_void_p,)),
    "event_message_next": (POINTER(Message), (c_void_p,)),
    "event_stats": (c_char_p, (c_void_p,)),
    "event_type": (c_int, (c_void_p,)),
    "flush": (c_int, (c_void_p, c_int)),
    "init_transactions": (c_void_p, (c_void_p, c_int)),
    "metadata": (c_int, (c_void_p, c_int, c_void_p, POINTER(POINTER(Metadata)), c_int)),
    "metadata_destroy": (None, (POINTER(Metadata),)),
    "name": (c_char_p, (c_void_p,)),
    "new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "outq_len": (c_int, (c_void_p,)),
    "produce_batch": (c_int, (c_void_p, c_int32, c_int, c_uint64, c_int)),
    "purge": (c_int, (c_void_p, c_int)),
    "queue_destroy": (None, (c_void_p,)),
    "queue_get_main": (c_void_p, (c_void_p,)),
    "queue_poll": (c_void_p, (c_void_p, c_int)),
    "set_log_queue": (c_int, (c_void_p, c_void_p)),
    "topic_destroy": (None, (c_void_p,)),
    "topic_name": (c_char_p, (c_void_p,)),
    "topic_new": (c_void_p, (c_void_p, c_char_p, c_void_p)),
}


class Library:
    """librdkafka's functions, by their names without ``rd_kafka_``. Calls release the GIL."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"librdkafka's function {name!r} is not declared.")

    def taken_error(self, error: int | None) -> KafkaError | None:
        """Converts an ``rd_kafka_error_t`` to confluent-kafka's error, and frees it. Returns None for no error."""
        if not error:
            return None
        found = KafkaError(
            self.error_code(error),
            text(self.error_string(error)),
            bool(self.error_is_fatal(error)),
            bool(self.error_is_retriable(error)),
            bool(self.error_txn_requires_abort(error)),
        )
        self.error_destroy(error)
        return found


@cache
def librdkafka() -> Library | None:
    """Returns the library; None if its functions cannot be found through ``cimpl``, for example on Windows."""
    if ctypes.sizeof(c_void_p) * 8 != 64:
        return None
    try:
        return Library(ctypes.CDLL(cimpl.__file__))
    except (OSError, AttributeError):
        return None


def text(raw: bytes | None) -> str:
    """Returns a librdkafka string; empty if there is none."""
    return (raw or b"").decode(errors="replace")
