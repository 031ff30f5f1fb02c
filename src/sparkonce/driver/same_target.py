"""Refuses to write lost rows of a decided batch to another topic or table than the rows that are committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkonce import errors
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import State
from sparkonce.protocol.view import Run
from sparkonce.sink import Facts

_PLACES = ("topic", "schema", "table")
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
    suffering = {sink for sink, _ in healing.lost}
    kept = [one for one in decision.handles if one.sink in suffering and one.transaction]
    for handle in (one for one in kept if one.key not in healing.lost):
        sink, before = handle.sink, _facts_of_its_run(handle, decision.token, state.view.runs)
        now = facts(sink)
        for name in _PLACES:
            if name in before and before[name] != now.get(name):
                raise errors.ConfigurationError(
                    f"Sink {sink!r} has lost a part of batch {decision.batch}, which is decided, and the rest of it is "
                    f"committed in {name}={before[name]!r}; now the sink has {name}={now.get(name)!r}. The lost rows "
                    "would be written there, and the batch would be in two places.",
                    next_step=f"Start the query with {name}={before[name]!r} until batch {decision.batch} is "
                    "committed; then change it. If it was renamed, give it its old name until then.",
                    sink=sink,
                )


def _facts_of_its_run(handle: Handle, decided_by: Token, runs: Sequence[Run]) -> Facts:
    """Returns what the run that wrote a transaction knew of its sink.

    Its token is in the transaction's name. The decision's may be that of a later run, which has amended it.
    """

    def wrote(run: Run) -> bool:
        mark = f".{run.token.position}-{run.token.nonce}."
        return any(mark in str(value) for _, value in handle.transaction)

    writers = [*filter(wrote, runs), *(run for run in runs if run.token == decided_by)]
    return dict(dict(writers[0].sinks).get(handle.sink, ())) if writers else {}
