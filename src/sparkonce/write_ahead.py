"""A function as a sink, and the base class for sinks whose rows wait in the checkpoint until their batch is decided.

`WriteAheadSink` turns a function into a sink. The function receives an `ApplyToken`. It may return `SKIPPED`, and may
raise `RefusedError` or `RetryLaterError`. `Applies` states what happens if the function is called twice with the same
token.

To support a system without transactions in your own sink, extend `WriteAheadSink`. Executors write files with a
`WriteAheadWriter`. On the driver, a `WriteAheadCommitter` commits them by calling an `Application` once for each `Unit`
of files. Each file has an `Entry` in the `WriteAheadFolder`. `read` returns the rows of files, and `put_note` stores a
note next to them.
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
