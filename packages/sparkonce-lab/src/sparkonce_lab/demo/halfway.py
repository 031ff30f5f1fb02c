"""A sink whose driver can be held between the two halves of a batch's commits.

In a module of its own: Spark pickles sinks to its workers by reference, and these import little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from sparkonce.protocol.handles import Finished, Handle
from sparkonce.sink import SinkCommitter
from sparkonce_lab.forwarding import ForwardingCommitter, ForwardingSink

HALFWAY = "HALFWAY"
"""The point's name, beside those of the phases."""


class HalfwaySink(ForwardingSink):
    """Another sink, whose committer stops half-way where it is to be held there.

    Attributes:
        is_held: Tells whether it is to be held. Of the class, since only the driver has it and not the workers.
        wait: Waits there.
    """

    is_held: ClassVar[Callable[[], bool]]
    wait: ClassVar[Callable[[], None]]

    def committer(self) -> SinkCommitter:
        """Returns the real committer, in a wrapper."""
        return _HalfwayCommitter(self._real.committer())


class _HalfwayCommitter(ForwardingCommitter):
    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        written = [handle for handle in handles if handle.transaction]
        if len(written) > 1 and HalfwaySink.is_held():
            self._real.commit(written[: len(written) // 2])
            HalfwaySink.wait()
        return self._real.commit(handles)
