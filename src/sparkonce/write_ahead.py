"""A function as a sink, and the base of sinks whose rows wait in the checkpoint until their batch is decided.

A function that `WriteAheadSink` makes a sink of receives an `ApplyToken`, and may return `SKIPPED` or raise
`RefusedError` and `RetryLaterError`; `Applies` says how it applies rows.

A sink of your own for a system without transactions extends `WriteAheadSink`. Executors fill files by a
`WriteAheadWriter`. On the driver a `WriteAheadCommitter` commits them by calls of an `Application`, each for a `Unit`
of files. A file is an `Entry` of the `WriteAheadFolder`, which `read` reads; `put_note` keeps a note beside them.
"""

from __future__ import annotations

from sparkonce.sinks.write_ahead.application import (
    SKIPPED,
    Application,
    Applies,
    Apply,
    ApplyToken,
    CallSettings,
    RefusedError,
    RetryLaterError,
    Unit,
)
from sparkonce.sinks.write_ahead.committer import Answers, WriteAheadCommitter
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce.sinks.write_ahead.ledger import Entry, put_note
from sparkonce.sinks.write_ahead.rows import read
from sparkonce.sinks.write_ahead.sink import WriteAheadSink
from sparkonce.sinks.write_ahead.writer import WriteAheadWriter

__all__ = [
    "SKIPPED",
    "Answers",
    "Application",
    "Applies",
    "Apply",
    "ApplyToken",
    "CallSettings",
    "Entry",
    "RefusedError",
    "RetryLaterError",
    "Unit",
    "WriteAheadCommitter",
    "WriteAheadFolder",
    "WriteAheadSink",
    "WriteAheadWriter",
    "put_note",
    "read",
]
