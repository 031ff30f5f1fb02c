"""A secret in a sink's settings, and where it must never appear: in the checkpoint, the log, messages, and errors.

The secret is in the pickled sinks that Spark sends to its executors, which need it to connect. Those are never stored.
"""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from small_job import SmallJob
from sparkonce.errors import SparkonceError
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.storage.local import LocalFiles

CANARY = "c4n4ry-Xq9"
Make = Callable[..., TwoPhaseCommitSink]


def rows(batch: int, slot: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array([100 * batch + 10 * slot], pa.int64()), "value": [f"{batch}.{slot}"]})


def everything_told(sink: TwoPhaseCommitSink, checkpoint: Path) -> list[str]:
    """Returns the repr and str of a sink and of the objects in it."""
    sink.use_checkpoint(LocalFiles(checkpoint))
    parts = [sink, sink.committer(), *vars(sink).values()]
    shown = [f"{one!r} {one!s}" for one in parts if not isinstance(one, (dict, str, tuple))]
    parts[1].close()
    return [*shown, *map(str, sink.conditions())]


def said_of(error: BaseException) -> str:
    """Returns everything that a log could show of an error: its traceback with all causes, details and pickle."""
    whole = "".join(traceback.format_exception(error))
    return (
        f"{whole} {error!r} {getattr(error, 'details', '')} {getattr(error, 'next_step', '')} {pickle.dumps(error)!r}"
    )


def check(make: Make, checkpoint: Path, caplog: pytest.LogCaptureFixture, **wrong: dict[str, Any]) -> None:
    """Runs a job, makes each misconfigured sink fail, and searches everything that is written or logged for the secret.

    Args:
        make: Makes a sink that has the secret. Keyword arguments change a setting.
        checkpoint: A new folder.
        caplog: Captures all loggers, including those of the client libraries.
        wrong: The keyword arguments that make `make`'s sink fail, each under a readable name.
    """
    caplog.set_level(logging.DEBUG)
    told = everything_told(make(), checkpoint)
    SmallJob(checkpoint, lambda: [make()], rows).live()
    for words, changed in wrong.items():
        with pytest.raises(SparkonceError) as raised:
            SmallJob(checkpoint / words, lambda changed=changed: [make(**changed)], rows).run(0)
        told.append(said_of(raised.value))
    told += [f"{record.name} {record.getMessage()} {record.exc_text}" for record in caplog.records]
    assert not [words for words in told if CANARY in words]
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    assert any(path.parent.name == "records" for path in files)
    assert not [path for path in files if CANARY.encode() in path.read_bytes() or CANARY in str(path)]
    assert CANARY.encode() in pickle.dumps(make()), "or else nothing was tried"
