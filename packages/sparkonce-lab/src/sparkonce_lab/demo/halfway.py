"""A sink whose driver can be held halfway through a batch's commits.

Spark pickles sinks to its workers by reference, so the sink is in a separate module, which imports little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from sparkonce.protocol.handles import Finished, Handle
from sparkonce.sink import SinkCommitter
from sparkonce_lab.forwarding import ForwardingCommitter, ForwardingSink


class HalfwaySink(ForwardingSink):
    """Wraps a sink, whose committer pauses halfway through a batch if `is_held` returns True, until `wait` returns.

    `is_held` is a class attribute, because only the driver has it, not the workers.
    """

    is_held: ClassVar[Callable[[], bool]]
    wait: ClassVar[Callable[[], None]]

    def committer(self) -> SinkCommitter:
        return _HalfwayCommitter(self._real.committer())  # type: ignore[abstract]


class _HalfwayCommitter(ForwardingCommitter):
    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        written = [handle for handle in handles if handle.transaction]
        if len(written) > 1 and HalfwaySink.is_held():
            self._real.commit(written[: len(written) // 2])
            HalfwaySink.wait()
        return self._real.commit(handles)
