"""Checks of ``list_traces``, for suites with ``leaves_traces``."""

from __future__ import annotations

from sparkonce.protocol.traces import Trace
from sparkonce.testing.hooks import SinkHooks, needs
from sparkonce.testing.scene import COMMITTED, Scene, require, scene


class TraceChecks(SinkHooks):
    """Checks that traces show what the query has committed, in which runs, and nothing that belongs to others."""

    @needs("leaves_traces")
    def test_a_trace_is_left_by_what_is_committed_and_by_nothing_else(self) -> None:
        """Checks that open, prepared or aborted transactions leave none: a log without them is not outdated."""
        with scene(self) as on:
            writer = on.open(0)
            on.abort(on.prepare(10, slot=1))
            prepared = on.prepare(20, slot=2)
            early = _traces(on)
            require(not early, f"nothing is committed, and the traces are {early}")
            on.expect_outcomes(on.commit(prepared), COMMITTED, what="commit of a prepared transaction")
            on.committer.conclude(0, [prepared])
            found = _remembered(on)
            require(
                [trace.committed for trace in found if trace.committed] == [prepared.transaction],
                f"the transaction {prepared.transaction} is committed and no other, and the traces are {found}",
            )
            writer.abort()

    @needs("leaves_traces")
    def test_traces_say_which_batch_they_are_of(self) -> None:
        """Checks the batch of each trace that has one: a batch after the newest decided one reveals an outdated log."""
        with scene(self) as on:
            handles = [on.prepare(10 * batch, batch=batch) for batch in range(2)]
            on.expect_outcomes(on.commit(*handles), COMMITTED, COMMITTED, what="commit of two batches")
            for batch, handle in enumerate(handles):
                on.committer.conclude(batch, [handle])
            batches = {trace.committed: trace.batch for trace in _remembered(on) if trace.committed}
            for batch, handle in enumerate(handles):
                told = batches.get(handle.transaction)
                require(told in (None, batch), f"a transaction is of batch {batch}, and its trace says {told}")

    @needs("leaves_traces")
    def test_traces_of_one_query_only(self) -> None:
        """Checks that every trace has its own run's token, and that nothing of another query is listed."""
        with scene(self) as on:
            last = "0" if on.query[-1] != "0" else "1"
            newer = on.make_owner(position=on.owner.token.position + 1)
            stranger = on.make_owner(position=on.owner.token.position + 2, query=on.query[:-1] + last)
            handles = [on.prepare(10 * slot, slot=slot, owner=one) for slot, one in enumerate((None, newer, stranger))]
            on.expect_outcomes(on.commit(*handles), *[COMMITTED] * 3, what="commit of three runs")
            for handle in handles:
                on.committer.conclude(0, [handle])
            found = _remembered(on)
            tokens = {trace.token for trace in found}
            require(
                tokens == {on.owner.token, newer.token},
                f"the runs {on.owner.token} and {newer.token} wrote, and the traces are {found}",
            )
            wrong = [
                trace
                for trace in found
                for handle, owner in zip(handles, (on.owner, newer), strict=False)
                if trace.committed == handle.transaction and trace.token != owner.token
            ]
            require(not wrong, f"a trace must have the token of the run that wrote: {wrong}")


def _remembered(on: Scene) -> list[Trace]:
    found = _traces(on)
    require(bool(found), "something is committed, and list_traces gives none: set leaves_traces = False")
    for trace in found:
        fits = trace.lane is None or trace.lane in trace.committed
        require(fits, f"the lane {trace.lane} must be one of the fields {trace.committed}")
    return found


def _traces(on: Scene) -> list[Trace]:
    return list(on.new_committer().list_traces(on.query, on.facts))
