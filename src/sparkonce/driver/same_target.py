"""Refuses to write lost rows of a decided batch to another topic or table than the rows that are committed."""

from __future__ import annotations

from collections.abc import Callable

from sparkonce import errors
from sparkonce.protocol.state import State
from sparkonce.sink import Facts

_PLACES = ("topic", "table")
"""The facts that name the place of a sink's rows, and may change between runs."""


def check_same_target(state: State, facts: Callable[[str], Facts]) -> None:
    """Checks each sink that has lost a part of the batch: the rest is where the run that decided it wrote.

    A sink that has lost all of the batch may write it anywhere.

    Args:
        state: The run's, while it heals.
        facts: Gives a sink's facts in this run.

    Raises:
        ConfigurationError: naming both places.
    """
    healing = state.finishing
    if healing is None:
        return
    decision = healing.decision
    then = next((dict(run.sinks) for run in state.view.runs if run.token == decision.token), {})
    kept = {one.sink for one in decision.handles if one.transaction and one.key not in healing.lost}
    for sink in sorted(kept & {sink for sink, _ in healing.lost}):
        before, now = dict(then.get(sink, ())), facts(sink)
        for name in _PLACES:
            if name in before and before[name] != now.get(name):
                raise errors.ConfigurationError(
                    f"Sink {sink!r} has lost a part of batch {decision.batch}, which is decided, and the rest of it is "
                    f"committed in {name}={before[name]!r}; now the sink has {name}={now.get(name)!r}. The lost rows "
                    "would be written there, and the batch would be in two places.",
                    next_step=f"Start the query with {name}={before[name]!r} until batch {decision.batch} is "
                    "committed; then change it.",
                    sink=sink,
                )
