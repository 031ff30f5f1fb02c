"""Checks of system faults, and of the sink object itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkonce.guarantees import Guarantee
from sparkonce.testing.hooks import SinkHooks, needs
from sparkonce.testing.scene import ABORTED, COMMITTED, LOST, Scene, require, scene

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.protocol.handles import Handle


class SystemChecks(SinkHooks):
    """Checks timeouts, restarts, preflight, columns, pickling, and writing without transactions."""

    # --- faults of the system ---------------------------------------------------------------------------------------

    @needs("expire")
    def test_a_transaction_that_timed_out_is_lost(self) -> None:
        """Checks for LOST, not UNKNOWN, so that the query may rewrite the rows."""
        with scene(self) as on:
            handle = on.prepare(0)
            require(self.expire(handle), "expire must make the system give up the transaction, or not be overridden")
            for committer in (on.committer, on.new_committer()):
                on.expect_outcomes(on.commit(handle, by=committer), LOST, what="commit after the timeout")
            on.expect_outcomes(on.abort(handle), ABORTED, what="abort after the timeout")
            on.expect_nothing_lingers("after the timeout")
            on.expect_only(when="after the timeout")

    @needs("restart_server")
    def test_what_is_prepared_survives_a_restart_of_the_system(self) -> None:
        """Restarts the system between prepare and commit."""
        with scene(self) as on:
            committed = on.prepare(10, slot=1)
            on.commit(committed)
            on.expect_visible(10, when="before the restart")
            prepared = on.prepare(0)
            require(self.restart_server(), "restart_server must restart the system, or not be overridden")
            outcomes = on.commit(prepared, committed, by=on.new_committer())
            on.expect_outcomes(outcomes, COMMITTED, COMMITTED, what="commit after the restart, one for the second time")
            on.expect_only(0, 10, when="after the restart")

    def test_what_is_committed_is_not_missing(self) -> None:
        """Also checks a thousand batches later, when the system has forgotten: no healthy query may be stopped."""
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

    @needs("finds_missing")
    def test_what_is_not_committed_is_missing(self) -> None:
        """Simulates a system that was restored to a state before a commit, with the transactions still prepared."""
        with scene(self) as on:
            committed, *prepared = (on.prepare(10 * slot, slot=slot) for slot in range(3))
            on.commit(committed)
            gone = list(on.new_committer().missing(prepared))
            require(bool(gone), f"{prepared} are not committed, and missing gives none: set finds_missing = False")
            require(gone == prepared, f"{prepared} are prepared and not committed, and missing gives {gone}")

    @needs("make_refused")
    def test_refused_rows_are_told_and_the_others_are_written(self) -> None:
        """Offers rows of both kinds, in two record batches. Only the accepted ones may become visible."""
        import pyarrow as pa

        with scene(self) as on:
            refused = self._refused(on)
            mixed = [on.rows(0, 1), refused, on.rows(1, 1), refused, refused]
            writer = on.new_writer()
            writer.begin()
            for pieces, expected in ((mixed, [1, 3, 4]), ([refused, on.rows(2, 2)], [0])):
                rows = pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]
                told = writer.offer(rows)
                numbers = list(told.rows)
                require(numbers == expected, f"rows {expected} are to be refused, and offer returned {numbers}")
                require(
                    len(told.reasons) == len(expected) and all(told.reasons),
                    f"offer must give a reason for each of {len(expected)} rows, and gave {list(told.reasons)}",
                )
            handle = on.handle(writer.prepare(), rows=4)
            writer.close()
            on.commit(handle)
            on.expect_only(0, 2, when="after the commit of the rows that were not refused")

    @needs("make_refused")
    def test_a_copy_whose_rows_are_all_refused_is_aborted(self) -> None:
        """Offers only refused rows: nothing is prepared, and nothing lingers."""
        with scene(self) as on:
            refused = self._refused(on)
            writer = on.new_writer()
            writer.begin()
            told = writer.offer(refused)
            require(list(told.rows) == [0], f"the row is to be refused, and offer returned {list(told.rows)}")
            writer.abort()
            on.expect_nothing_lingers("after the abort")
            on.expect_only(when="after the abort")

    def _refused(self, on: Scene) -> pa.RecordBatch:
        row = self.make_refused(90)
        if row is None or not on.sink.tells_refused:
            raise AssertionError("make_refused must return a row, of a sink with tells_refused, or not be overridden")
        return row.select(list(on.sink.columns(row.schema)))

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
        """Checks that each column is chosen once."""
        with scene(self) as on:
            schema = self.make_rows(0, 1).schema
            columns = list(on.sink.columns(schema))
            require(bool(columns), f"columns chose nothing of {schema.names}")
            require(set(columns) <= set(schema.names), f"columns chose {columns} of {schema.names}")
            require(len(set(columns)) == len(columns), f"columns chose {columns}")

    def test_the_timeout_is_a_time(self) -> None:
        """Checks for a time, or None if the system never aborts a transaction on its own."""
        with scene(self) as on:
            timeout_s = on.sink.transaction_timeout_s(on.facts)
            require(timeout_s is None or timeout_s > 0, f"transaction_timeout_s must be above 0, and is {timeout_s!r}")

    @needs("leaves_process")
    def test_the_sink_travels(self) -> None:
        """Pickles the sink, as Spark does for its workers, and writes."""
        with scene(self) as on:
            on.sink = on.travelled(on.sink)
            require(on.sink.guarantee is Guarantee.EXACTLY_ONCE, "make_sink must return a sink at EXACTLY_ONCE")
            on.expect_outcomes(on.commit(on.prepare(0)), COMMITTED, what="commit of what an unpickled sink wrote")
            on.expect_visible(0, when="after the commit")

    @needs("make_direct_sink")
    def test_without_transactions_rows_show_at_once(self) -> None:
        """Checks that at AT_LEAST_ONCE, prepare flushes and leaves nothing to finish, and rows are visible."""
        direct = self.make_direct_sink()
        if direct is None:
            raise AssertionError("make_direct_sink must return a sink, or not be overridden")
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
