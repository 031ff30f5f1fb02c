"""The types of a producer's errors."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from sparkonce.sinks.kafka.pooled_producer import PooledProducer

FENCED = KafkaError(KafkaError._FENCED, "an old epoch", fatal=True)


def raise_bare_error() -> None:
    """Raises a bare KafkaError, which a Python ``raise`` does not allow."""
    restore = ctypes.pythonapi.PyErr_Restore
    restore.argtypes, restore.restype = [ctypes.py_object, ctypes.py_object, ctypes.c_void_p], None
    for kept in (KafkaError, FENCED):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    restore(KafkaError, FENCED, None)


def raise_exception() -> None:
    raise KafkaException(FENCED)


def raise_without_a_cause() -> None:
    raise SystemError("returned NULL without setting an exception")


@pytest.mark.parametrize("failing", [raise_bare_error, raise_exception, raise_without_a_cause])
def test_a_fatal_error_is_kept_however_it_comes(failing: object) -> None:
    """confluent-kafka 2.16.1 raises a bare error if a producer is fenced while two threads use it."""
    pooled = SimpleNamespace(
        producer=SimpleNamespace(flush=lambda _: failing()),  # type: ignore[operator]
        reports=SimpleNamespace(fatal=""),
        transactional_id="id",
        abort_reason=lambda: "an old epoch",
    )
    PooledProducer._serve(pooled, "flush", 0.0)  # type: ignore[arg-type]
    assert pooled.reports.fatal == "an old epoch"
