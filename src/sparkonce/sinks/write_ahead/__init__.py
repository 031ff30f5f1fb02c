"""Any system that a function can be written for: rows wait in the checkpoint, and are given to it once it is decided.

``sink`` puts the parts together. ``rows`` writes a slot's rows to a file and reads them back, ``folder`` says by its
subfolders where each file stands (``entry`` is what a handle says of one), ``ledger`` what it means that one is not
there, ``writer`` fills one on an executor, ``committer`` gives them to the user's function on the driver, ``calls``
runs that with a deadline, ``application`` is one such call, and ``apply`` what the function sees and may raise.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkonce.sinks.write_ahead.apply import SKIPPED as SKIPPED
    from sparkonce.sinks.write_ahead.apply import Applies as Applies
    from sparkonce.sinks.write_ahead.apply import ApplyToken as ApplyToken
    from sparkonce.sinks.write_ahead.apply import RefusedError as RefusedError
    from sparkonce.sinks.write_ahead.apply import RetryLaterError as RetryLaterError
    from sparkonce.sinks.write_ahead.sink import WriteAheadSink as WriteAheadSink

__all__ = ["SKIPPED", "Applies", "ApplyToken", "RefusedError", "RetryLaterError", "WriteAheadSink"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "sink" if name == "WriteAheadSink" else "apply"
    return getattr(import_module(f"{__name__}.{home}"), name)
