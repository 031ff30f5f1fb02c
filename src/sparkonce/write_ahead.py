"""For functions that are sinks: what `sparkonce.WriteAheadSink` gives them, and what they may return and raise."""

from __future__ import annotations

from sparkonce.sinks.write_ahead.apply import SKIPPED, Applies, ApplyToken, RefusedError, RetryLaterError

__all__ = ["SKIPPED", "Applies", "ApplyToken", "RefusedError", "RetryLaterError"]
