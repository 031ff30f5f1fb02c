"""What the system remembers of a query: the checks of ``list_traces``, which are skipped where it gives none."""

from __future__ import annotations

from sparkonce.protocol.traces import Trace
from sparkonce.testing.hooks import SinkHooks
from sparkonce.testing.scene import COMMITTED, Scene, require, scene, skip


class TraceChecks(SinkHooks):
    """The commits of the newest run, the runs before it, and nothing of anybody else."""

    def test_a_trace_is_left_by_what_is_committed_and_by_nothing_else(self) -> None:
        """Not by what is open, prepared or aborted: a log that does not know those is not an old one."""
        with scene(self) as on:
            writer = on.open(0)
            on.abort(on.prepare(10, slot=1))
            prepared = on.prepare(20, slot=2)
            early = _traces(on)
            require(not any(trace.committed for trace in early), f"nothing is committed, and the traces are {early}")
            on.expect_outcomes(on.commit(prepared), COMMITTED, what="commit of a prepared transaction")
            found = _remembered(on)
            require(
                [trace.committed for trace in found if trace.committed] == [prepared.transaction],
                f"the transaction {prepared.transaction} is committed and no other, and the traces are {found}",
            )
            writer.abort()

    def test_traces_are_in_the_order_of_the_batches(self) -> None:
        """So that what was committed before a batch can be told from what was committed after it."""
        with scene(self) as on:
            handles = [on.prepare(0)]
            on.expect_outcomes(on.commit(*handles), COMMITTED, what="commit of the first batch")
            handles.append(on.prepare(10, batch=1))
            on.expect_outcomes(on.commit(handles[1]), COMMITTED, what="commit of the second batch")
            begun = {trace.committed: trace.begun for trace in _remembered(on) if trace.committed}
            first, second = (begun.get(handle.transaction) for handle in handles)
            require(
                first is not None and second is not None and first <= second,
                f"the traces say that two batches which followed each other were begun at {first} and {second}",
            )

    def test_traces_of_one_query_only(self) -> None:
        """With every run of it by its own token, and nothing of a neighbour's."""
        with scene(self) as on:
            last = "0" if on.query[-1] != "0" else "1"
            newer = on.make_owner(position=on.owner.token.position + 1)
            stranger = on.make_owner(position=on.owner.token.position + 2, query=on.query[:-1] + last)
            handles = [on.prepare(10 * slot, slot=slot, owner=one) for slot, one in enumerate((None, newer, stranger))]
            on.expect_outcomes(on.commit(*handles), *[COMMITTED] * 3, what="commit of three runs")
            found = _remembered(on)
            tokens = {trace.token for trace in found}
            require(
                tokens == {on.owner.token, newer.token},
                f"the runs {on.owner.token} and {newer.token} wrote, and the traces are {found}",
            )
            own = [trace for trace in found if trace.committed == handles[0].transaction]
            require(bool(own) and own[0].token == on.owner.token, f"the newest known run committed; traces: {found}")


def _remembered(on: Scene) -> list[Trace]:
    found = _traces(on)
    if not found:
        skip("list_traces gives none")
    for trace in found:
        fits = trace.lane is None or trace.lane in trace.committed
        require(fits, f"the lane {trace.lane} must be one of the fields {trace.committed}")
    return found


def _traces(on: Scene) -> list[Trace]:
    return list(on.new_committer().list_traces(on.query, on.facts, on.owner.token))
