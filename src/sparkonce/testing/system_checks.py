"""Faults of the system, and the sink object itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkonce.guarantees import Guarantee
from sparkonce.testing.hooks import SinkHooks
from sparkonce.testing.scene import ABORTED, COMMITTED, LOST, require, scene, skip

if TYPE_CHECKING:
    from sparkonce.protocol.handles import Handle


class SystemChecks(SinkHooks):
    """Timeouts, restarts, preflight, columns, pickling, and the way without transactions."""

    # --- faults of the system ---------------------------------------------------------------------------------------

    def test_a_transaction_that_timed_out_is_lost(self) -> None:
        """Checks for LOST, not UNKNOWN: it lets the query write the rows again."""
        with scene(self) as on:
            handle = on.prepare(0)
            if not self.expire(handle):
                skip("expire is not given")
            for committer in (on.committer, on.new_committer()):
                on.expect_outcomes(on.commit(handle, by=committer), LOST, what="commit after the timeout")
            on.expect_outcomes(on.abort(handle), ABORTED, what="abort after the timeout")
            on.expect_nothing_lingers("after the timeout")
            on.expect_only(when="after the timeout")

    def test_what_is_prepared_survives_a_restart_of_the_system(self) -> None:
        """Restarts the system between prepare and commit."""
        with scene(self) as on:
            committed = on.prepare(10, slot=1)
            on.commit(committed)
            on.expect_visible(10, when="before the restart")
            prepared = on.prepare(0)
            if not self.restart_server():
                skip("restart_server is not given")
            outcomes = on.commit(prepared, committed, by=on.new_committer())
            on.expect_outcomes(outcomes, COMMITTED, COMMITTED, what="commit after the restart, one for the second time")
            on.expect_only(0, 10, when="after the restart")

    def test_what_is_committed_is_not_missing(self) -> None:
        """Asks also a thousand batches later, when the system has forgotten: no healthy query is stopped."""
        with scene(self) as on:
            committed: list[Handle] = []
            for batch in (0, 100, 1000):
                committed.append(on.prepare(batch, batch=batch))
                on.commit(committed[-1])
                on.committer.conclude(batch, committed[-1:])
                for committer in (on.committer, on.new_committer()):
                    for handle in committed:
                        gone = list(committer.missing([handle]))
                        require(not gone, f"all is committed, and missing says of {handle} that it is not")

    def test_what_is_not_committed_is_missing(self) -> None:
        """Asks a system that went back to before a commit, where the transactions were prepared."""
        with scene(self) as on:
            committed, *prepared = (on.prepare(10 * slot, slot=slot) for slot in range(3))
            on.commit(committed)
            gone = list(on.new_committer().missing(prepared))
            if not gone:
                skip("missing gives none")
            require(gone == prepared, f"{prepared} are prepared and not committed, and missing gives {gone}")

    # --- the sink itself --------------------------------------------------------------------------------------------

    def test_preflight_remembers(self) -> None:
        """Checks that recorded facts are accepted, and returned unchanged."""
        with scene(self) as on:
            plain = all(type(name) is str and type(fact) is str for name, fact in on.facts.items())
            require(plain, f"preflight must return text by name, and returned {on.facts!r}")
            for _ in range(2):
                again = on.restarted_sink().preflight(on.query, dict(on.facts))
                require(dict(again) == dict(on.facts), f"preflight gave {on.facts!r} first and then {again!r}")

    def test_columns_are_chosen_among_those_there_are(self) -> None:
        """Checks that each is chosen once."""
        with scene(self) as on:
            schema = self.make_rows(0, 1).schema
            columns = list(on.sink.columns(schema))
            require(bool(columns), f"columns chose nothing of {schema.names}")
            require(set(columns) <= set(schema.names), f"columns chose {columns} of {schema.names}")
            require(len(set(columns)) == len(columns), f"columns chose {columns}")

    def test_the_timeout_is_a_time(self) -> None:
        """Checks for a time, or None if the system never gives up by itself."""
        with scene(self) as on:
            timeout_s = on.sink.transaction_timeout_s(on.facts)
            require(timeout_s is None or timeout_s > 0, f"transaction_timeout_s must be above 0, and is {timeout_s!r}")

    def test_the_sink_travels(self) -> None:
        """Pickles the sink, as Spark does for its workers, and writes."""
        if not self.leaves_process:
            skip("leaves_process is False")
        with scene(self) as on:
            on.sink = on.travelled(on.sink)
            require(on.sink.guarantee is Guarantee.EXACTLY_ONCE, "make_sink must return a sink at EXACTLY_ONCE")
            on.expect_outcomes(on.commit(on.prepare(0)), COMMITTED, what="commit of what an unpickled sink wrote")
            on.expect_visible(0, when="after the commit")

    def test_without_transactions_rows_show_at_once(self) -> None:
        """Checks that at AT_LEAST_ONCE prepare flushes, leaves nothing to finish, and rows are visible."""
        direct = self.make_direct_sink()
        if direct is None:
            skip("make_direct_sink is not given")
            return
        with scene(self, direct) as on:
            require(direct.guarantee is Guarantee.AT_LEAST_ONCE, "make_direct_sink must return one at AT_LEAST_ONCE")
            on.new_writer().close()
            on.new_writer().abort()
            writer = on.open(0)
            fields = writer.prepare()
            require(not fields, f"below EXACTLY_ONCE prepare must return an empty mapping, and returned {fields!r}")
            writer.close()
            on.expect_visible(0, when="after prepare at AT_LEAST_ONCE")
            on.expect_nothing_lingers("at AT_LEAST_ONCE")
