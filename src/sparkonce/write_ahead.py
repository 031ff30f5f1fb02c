"""The arguments, answers and errors of a function that `sparkonce.WriteAheadSink` turns into a sink."""

from __future__ import annotations

from sparkonce.sinks.write_ahead.application import SKIPPED, Applies, ApplyToken, RefusedError, RetryLaterError

__all__ = ["SKIPPED", "Applies", "ApplyToken", "RefusedError", "RetryLaterError"]
