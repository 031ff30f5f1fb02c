"""The times that a run waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The times for which a run waits, and between its looks.

    Attributes:
        outage_patience_s: The longest wait for a system that cannot be reached or has no room, in each phase of a
            batch: while it is written, decided and committed. Then the query stops. Nothing is lost: the next run
            continues. A start waits as long, and a minute at most, for sinks to list what they remember.
        sweep_every_s: The time between two sweeps of the run's own losers when nothing shows that there are any; 0:
            one at the end of each batch.
        sweep_in_background: Whether a thread sweeps, so that batches do not wait for it.
        look_out_every_s: The time between two looks of the sinks at what others do to their readers; 0: never.
    """

    outage_patience_s: float = 300.0
    sweep_every_s: float = 10.0
    sweep_in_background: bool = False
    look_out_every_s: float = 0.0
