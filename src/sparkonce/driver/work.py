"""The interface to the engine, which runs a batch's plan for the driver. `sparkonce.spark.work` implements it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sparkonce.errors import PrepareError
from sparkonce.protocol.handles import Handle
from sparkonce.sink import Owner


class LargerRowsError(PrepareError):
    """Rows are larger than this write's plan allows. The next write of the batch is planned for rows of any size."""


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
            sinks: The sinks to write to by name, each with the owner of its transactions.
            only: See `effects.Write.only`.
            computed: If not None, all rows are computed and stored first. The function is then called, before the first
                transaction opens.

        Raises:
            LargerRowsError: If the batch must be written again.

        Returns:
            The handles, and True if there may be losing task attempts (retried tasks or stages, speculative tasks).
        """

    def run_into_nothing(self) -> None:
        """Runs the plan and discards its rows."""

    def is_stopped(self) -> bool:
        """Returns True if the query was stopped. All waits then end, and the next `write` raises an error."""


def check_handles(handles: Sequence[Handle], sinks: Sequence[str]) -> str:
    """Returns why these are not the complete handles of a batch; empty if every sink has each slot exactly once.

    Sinks with different views of the batch may have different numbers of slots. The engine compares the number of slots
    with the number of tasks that it ran.
    """
    slots = {sink: sorted(handle.slot for handle in handles if handle.sink == sink) for sink in sinks}
    if any(found != list(range(len(found))) for found in slots.values()):
        return f"the slots that returned a handle are {slots}"
    strangers = {handle.sink for handle in handles} - set(sinks)
    return f"handles came back for {sorted(strangers)}, which were not written to" if strangers else ""
