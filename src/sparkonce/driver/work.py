"""The work of the engine: it runs a batch's plan when the driver asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sparkonce.errors import PrepareError
from sparkonce.protocol.handles import Handle
from sparkonce.sink import Owner


class LargerRowsError(PrepareError):
    """Rows are larger than the plan of this write was made for. The next write of the batch is made for any."""


class BatchWork(Protocol):
    """The plan of a batch."""

    def write(
        self,
        sinks: Mapping[str, Owner],
        only: frozenset[tuple[str, int]] | None,
        computed: Callable[[], None] | None = None,
    ) -> tuple[Sequence[Handle], bool]:
        """Runs the plan and prepares every slot.

        Args:
            sinks: The sinks to write to, by name, each with the run as it is to know it.
            only: See `effects.Write.only`.
            computed: If not None, all rows are computed and stored first. It is called before the first transaction
                opens.

        Raises:
            LargerRowsError: if the batch is to be written once more.

        Returns:
            The handles, and whether a copy may have lost: a task or its whole stage tried again, a speculative task.
        """

    def run_into_nothing(self) -> None:
        """Runs the plan and throws its rows away."""

    def is_stopped(self) -> bool:
        """Returns True if the query was stopped: nothing is waited for then, and the next `write` raises."""


def check_handles(handles: Sequence[Handle], sinks: Sequence[str]) -> str:
    """Returns why these cannot be all handles of a batch; empty if each sink has each slot once, and none is missing.

    Sinks that take different views of the batch may have different numbers of slots. The engine compares how many there
    are with how many tasks it ran.
    """
    slots = {sink: sorted(handle.slot for handle in handles if handle.sink == sink) for sink in sinks}
    if any(found != list(range(len(found))) for found in slots.values()):
        return f"the slots that returned a handle are {slots}"
    strangers = {handle.sink for handle in handles} - set(sinks)
    return f"handles came back for {sorted(strangers)}, which were not written to" if strangers else ""
