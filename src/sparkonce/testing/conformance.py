"""The suite that every sink must pass, including your own. Run it with your own pytest (or unittest).

::

    class TestMySink(SinkConformance):
        def setup_method(self):
            self.table = create_empty_table()

        def make_sink(self):
            return MySink(self.table)

        def make_rows(self, start, count):
            return pa.record_batch({"number": range(start, start + count)})

        def visible(self):
            return ask_through_another_connection(f"SELECT number FROM {self.table}")

pytest creates an object of the class for each check, so each check has its own target, which is empty at first.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from sparkonce.guarantees import Guarantee
from sparkonce.protocol.traces import Trace
from sparkonce.testing.hooks import SinkHooks, needs
from sparkonce.testing.scene import ABORTED, ALREADY_COMMITTED, COMMITTED, GONE, LOST, Scene, altered, require, scene

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.protocol.handles import Handle

__all__ = ["SinkConformance"]


class CommitChecks(SinkHooks):
    """Checks that readers see no rows before a commit, and exactly the committed rows after it, even if repeated."""

    # --- what a reader sees -----------------------------------------------------------------------------------------

    def test_nothing_is_visible_before_the_commit(self) -> None:
        """Checks that rows stay hidden through begin, write, prepare and close."""
        with scene(self) as on:
            writer = on.new_writer()
            writer.begin()
            on.expect_visible(when="after begin")
            writer.write(on.rows(0, 2))
            on.expect_visible(when="after write")
            on.handle(writer.prepare(), rows=2)
            on.expect_visible(when="after prepare")
            writer.close()
            on.expect_visible(when="after close")

    def test_a_commit_shows_exactly_its_rows(self) -> None:
        """Checks that a commit shows all rows of its transaction, and no others."""
        with scene(self) as on:
            other, committed = on.prepare(10), on.prepare(20, slot=1)
            on.expect_outcomes(on.commit(committed), COMMITTED, what="commit of a prepared transaction")
            on.expect_at_most(20, when="after one of two transactions was committed")
            on.abort(other)
            on.expect_visible(20, when="after one of two transactions was committed and the other aborted")

    def test_rows_of_several_writes_are_one_transaction(self) -> None:
        """Writes a slot's rows in several pieces."""
        with scene(self) as on:
            writer = on.open(0)
            for start in (2, 4, 6):
                writer.write(on.rows(start, 2))
            handle = on.handle(writer.prepare(), rows=8)
            writer.close()
            on.expect_visible(when="before the commit")
            on.expect_outcomes(on.commit(handle), COMMITTED, what="commit of a prepared transaction")
            on.expect_visible(0, count=8, when="after the commit of a transaction of four writes")

    def test_batches_follow_each_other(self) -> None:
        """Commits several batches of one run in the same slot."""
        with scene(self) as on:
            for batch in range(3):
                outcomes = on.commit(on.prepare(10 * batch, batch=batch))
                on.expect_outcomes(outcomes, COMMITTED, what=f"commit of batch {batch}")
            on.expect_visible(0, 10, 20, when="after three batches")

    def test_a_slot_without_rows_leaves_nothing(self) -> None:
        """Creates and closes a writer without begin and prepare, as for a slot without rows."""
        with scene(self) as on:
            on.new_writer().close()
            on.expect_nothing_lingers("after a slot without rows")
            on.expect_only(when="after a slot without rows")

    # --- commit -----------------------------------------------------------------------------------------------------

    def test_a_repeated_commit_adds_nothing(self) -> None:
        """Repeats a commit, as a driver does if it does not know whether the commit was applied."""
        with scene(self) as on:
            handle = on.prepare(0)
            for _ in range(3):
                on.expect_outcomes(on.commit(handle), COMMITTED, what="each commit of the same handle")
            on.expect_only(0, when="after three commits of the same handle")

    def test_a_new_committer_commits(self) -> None:
        """Commits with the handle alone, since the driver that prepared it may be dead."""
        with scene(self) as on:
            handle = on.prepare(0)
            on.expect_outcomes(on.commit(handle, by=on.new_committer()), COMMITTED, what="commit by a new committer")
            on.expect_visible(0, when="after the commit")

    def test_a_new_committer_repeats_the_commit(self) -> None:
        """Repeats a commit that a dead driver may have made."""
        with scene(self) as on:
            handle = on.prepare(0)
            on.commit(handle)
            for _ in range(2):
                outcomes = on.commit(handle, by=on.new_committer())
                on.expect_outcomes(outcomes, COMMITTED, what="the second commit, by a new committer")
            on.expect_only(0, when="after three commits by three committers")

    @needs("leaves_process")
    def test_another_process_commits(self) -> None:
        """Commits in another process, with the pickled sink and the serialized handle, and then once more."""
        with scene(self) as on:
            handle = on.prepare(0)
            for _ in range(2):
                on.expect_outcomes(on.commit_elsewhere(handle), COMMITTED, what="commit by another process")
            on.expect_outcomes(on.commit(handle), COMMITTED, what="commit after another process's")
            on.expect_only(0, when="after commits by another process")

    def test_a_late_commit_does_not_reach_a_later_batch(self) -> None:
        """Repeats the commit of batch N while the same slot has batch N + 1 open (FLINK-8132)."""
        with scene(self) as on:
            first = on.prepare(0, batch=0)
            on.commit(first)
            on.expect_visible(0, when="after batch 0")
            unprepared = on.open(10, batch=1)
            second = on.prepare(20, batch=1)
            on.expect_outcomes(on.commit(first), COMMITTED, what="a late commit of batch 0")
            on.expect_visible(0, when="after a late commit of batch 0")
            unprepared.abort()
            on.expect_outcomes(on.commit(second), COMMITTED, what="commit of batch 1")
            on.expect_visible(0, 20, when="after batch 1")

    def test_all_slots_are_committed_by_one_call(self) -> None:
        """Commits a batch with one call that has all of its handles."""
        with scene(self) as on:
            handles = [on.prepare(10 * slot, slot=slot) for slot in range(4)]
            on.expect_outcomes(on.commit(*handles), *[COMMITTED] * 4, what="commit of four handles")
            on.expect_visible(0, 10, 20, 30, when="after the commit of four slots")

    def test_a_lost_handle_does_not_stop_the_others(self) -> None:
        """Checks that each handle gets its own outcome, in handle order; see ``loses_whole_batches``."""
        with scene(self) as on:
            handles = [on.prepare(10 * slot, slot=slot) for slot in range(3)]
            on.abort(handles[1])
            outcomes = on.commit(*handles)
            other, shown = (GONE, ()) if self.loses_whole_batches else (COMMITTED, (0, 20))
            on.expect_outcomes(outcomes, other, GONE, other, what="commit of three handles, the second gone")
            on.expect_only(*shown, when="after the commit of three handles, the second gone")

    def test_a_slot_may_hold_other_rows_when_a_part_of_its_batch_is_written_again(self) -> None:
        """Commits a replayed slot whose rows were previously in another slot. Both belong to the batch."""
        with scene(self) as on:
            newer = on.make_owner(position=on.owner.token.position + 1)
            on.expect_outcomes(on.commit(on.prepare(0, slot=1)), COMMITTED, what="commit of a slot")
            for start, owner in ((10, on.owner), (20, newer)):
                again = on.prepare(start, slot=1, owner=owner)
                on.expect_outcomes(on.commit(again), COMMITTED, what="commit of other rows of the same batch and slot")
            on.expect_visible(0, 10, 20, when="after three commits of one batch and slot")

    def test_concluding_a_batch_changes_nothing_for_readers(self) -> None:
        """Concludes a batch repeatedly, also as a run that takes over after an earlier run has finished the batch."""
        with scene(self) as on:
            handles = [*(on.prepare(10 * slot, slot=slot) for slot in range(2)), on.empty(slot=2)]
            on.expect_outcomes(on.commit(*handles[:2]), *[COMMITTED] * 2, what="commit of two handles")
            undecided = on.prepare(50, batch=1)
            for committer in (on.committer, on.committer, on.new_committer()):
                committer.conclude(0, handles)
            on.expect_visible(0, 10, when="after a batch was concluded three times")
            outcomes = on.commit(*handles[:2], by=on.new_committer())
            on.expect_outcomes(outcomes, *[COMMITTED] * 2, what="a late commit of what is concluded")
            outcomes = on.abort(*handles[:2], by=on.new_committer())
            on.expect_outcomes(outcomes, *[ALREADY_COMMITTED] * 2, what="a late abort of what is concluded")
            on.expect_outcomes(on.commit(undecided), COMMITTED, what="commit of the next batch")
            on.expect_visible(0, 10, 50, when="after the next batch")

    def test_concluding_later_batches_forgets_nothing_too_early(self) -> None:
        """Commits the last batches again, as a run does after a long pause.

        For an earlier batch whose ids have been reused, a system may return LOST, because the driver reads the log
        before it considers rows lost.
        """
        with scene(self) as on:
            handles = []
            # Finish each batch before the next one, as the driver does, because a later batch may reuse ids.
            for batch in range(3):
                handles.append(on.prepare(10 * batch, batch=batch))
                on.expect_outcomes(on.commit(handles[batch]), COMMITTED, what=f"commit of batch {batch}")
                on.committer.conclude(batch, [handles[batch]])
            on.committer.conclude(100, [on.empty()])
            outcomes = on.commit(*handles[1:], by=on.new_committer())
            on.expect_outcomes(outcomes, *[COMMITTED] * 2, what="a late commit, 100 batches later")
            on.expect_only(0, 10, 20, when="after a late commit")

    def test_nothing_to_do_is_done(self) -> None:
        """Checks that calls with empty arguments return empty results."""
        with scene(self) as on:
            require(list(on.committer.commit([])) == [], "commit of no handles must answer nothing")
            require(list(on.committer.abort([])) == [], "abort of no handles must answer nothing")
            require(list(on.committer.list_lingering([])) == [], "no runs have nothing that lingers")

    def test_a_handle_that_names_nothing_is_never_committed(self) -> None:
        """Checks that the outcome is not COMMITTED, which would lose rows."""
        with scene(self) as on:
            unknown = altered(on.prepare(0))
            for _ in range(2):
                on.expect_outcomes(on.commit(unknown), GONE, what="commit of a handle that names nothing")
            on.expect_visible(when="after the commit of a handle that names nothing")


class AbortChecks(SinkHooks):
    """Checks that an abort leaves nothing behind, and that no abort undoes a commit."""

    # --- abort ------------------------------------------------------------------------------------------------------

    def test_an_abort_hides_for_ever(self) -> None:
        """Checks that aborted rows never reappear, no matter what is committed later."""
        with scene(self) as on:
            on.expect_outcomes(on.abort(on.prepare(0)), ABORTED, what="abort of a prepared transaction")
            on.expect_nothing_lingers("after the abort")
            on.expect_only(when="after the abort")

    def test_a_repeated_abort_is_fine(self) -> None:
        """Repeats an abort, with the same committer and with a new one."""
        with scene(self) as on:
            handle = on.prepare(0)
            for committer in (on.committer, on.committer, on.new_committer()):
                on.expect_outcomes(on.abort(handle, by=committer), ABORTED, what="each abort of the same handle")
            on.expect_only(when="after three aborts")

    def test_a_commit_after_an_abort_is_lost(self) -> None:
        """Checks that the commit shows nothing. UNKNOWN is allowed, although it stops the query."""
        with scene(self) as on:
            handle = on.prepare(0)
            on.abort(handle)
            for committer in (on.committer, on.new_committer()):
                on.expect_outcomes(on.commit(handle, by=committer), GONE, what="commit after an abort")
            on.expect_only(when="after a commit that came after an abort")

    def test_an_abort_after_the_commit_comes_too_late(self) -> None:
        """Checks that the abort removes nothing and reports that. The commit can still be repeated."""
        with scene(self) as on:
            handle = on.prepare(0)
            on.commit(handle)
            for committer in (on.committer, on.new_committer()):
                outcomes = on.abort(handle, by=committer)
                on.expect_outcomes(outcomes, ALREADY_COMMITTED, what="abort after the commit")
            on.expect_outcomes(on.commit(handle), COMMITTED, what="commit, abort, commit")
            on.expect_only(0, when="after an abort that came too late")

    def test_aborts_leave_the_other_slots_alone(self) -> None:
        """Checks that exactly the given handles are aborted."""
        with scene(self) as on:
            handles = [on.prepare(10 * slot, slot=slot) for slot in range(3)]
            on.expect_outcomes(on.abort(handles[0], handles[2]), ABORTED, ABORTED, what="abort of two handles")
            on.expect_outcomes(on.commit(handles[1]), COMMITTED, what="commit of the slot that was not aborted")
            on.expect_visible(10, when="after two of three slots were aborted")

    @needs("lists_open")
    def test_an_aborted_writer_cannot_bring_its_rows_back(self) -> None:
        """Resumes a paused task after the sweep."""
        with scene(self) as on:
            writer = on.open(0)
            open_now = on.await_lingering()
            if not open_now:
                writer.abort()
                require(False, "a writer has written, and list_lingering found nothing: set lists_open = False")
            on.expect_outcomes(on.abort(*open_now), *[ABORTED] * len(open_now), what="abort of an open transaction")
            try:
                writer.write(on.rows(10, 2))
                fields = writer.prepare()
            except Exception:  # noqa: BLE001 - after any error, the attempt gives up
                writer.abort()
            else:
                late = on.handle(fields, rows=4)
                writer.close()
                on.expect_outcomes(on.commit(late), GONE, what="commit of what was written after the abort")
            on.expect_only(when="after a writer went on that had been aborted")

    # --- the writer gives up ----------------------------------------------------------------------------------------

    def test_a_writer_gives_up_before_it_begins(self) -> None:
        """Aborts without a begin, as happens when another sink's writer fails before this one receives rows."""
        with scene(self) as on:
            on.new_writer().abort()
            on.expect_nothing_lingers("after abort without begin")
            on.expect_only(when="after abort without begin")

    def test_a_writer_gives_up_after_begin(self) -> None:
        """Aborts after begin, before anything is written."""
        with scene(self) as on:
            writer = on.new_writer()
            writer.begin()
            writer.abort()
            on.expect_nothing_lingers("after begin and abort")
            on.expect_only(when="after begin and abort")

    def test_a_writer_gives_up_after_write(self) -> None:
        """Checks that the rows are gone."""
        with scene(self) as on:
            on.open(0).abort()
            on.expect_nothing_lingers("after write and abort")
            on.expect_only(when="after write and abort")

    def test_a_writer_gives_up_after_prepare(self) -> None:
        """Aborts after prepare, as when another sink of the same task attempt could not prepare."""
        with scene(self) as on:
            writer = on.open(0)
            handle = on.handle(writer.prepare(), rows=2)
            writer.abort()
            on.expect_nothing_lingers("after prepare and abort")
            on.expect_outcomes(on.commit(handle), GONE, what="commit of what its writer had aborted")
            on.expect_only(when="after prepare and abort")

    def test_what_is_prepared_outlives_its_writer(self) -> None:
        """Checks that a worker may exit right after prepare."""
        with scene(self) as on:
            handle = on.prepare(0)
            on.forget_writers()
            gc.collect()
            on.expect_outcomes(on.commit(handle), COMMITTED, what="commit after the writer is gone")
            on.expect_visible(0, when="after the commit")

    # --- attempts of one slot ---------------------------------------------------------------------------------------

    def test_copies_of_a_slot_do_not_disturb_each_other(self) -> None:
        """Commits the first task attempt and aborts the second."""
        self._compete(winner=0)

    def test_a_later_copy_may_win(self) -> None:
        """Commits the second task attempt and aborts the first."""
        self._compete(winner=1)

    def _compete(self, *, winner: int) -> None:
        with scene(self) as on:
            writers = [on.open(0), on.open(0)]
            handles = [on.handle(writer.prepare(), rows=2) for writer in writers]
            for writer in writers:
                writer.close()
            require(handles[0].transaction != handles[1].transaction, "two attempts of a slot have the same handle")
            on.expect_outcomes(on.commit(handles[winner]), COMMITTED, what="commit of the winning attempt")
            on.sweep()
            on.expect_outcomes(on.commit(handles[1 - winner]), GONE, what="commit of the losing attempt")
            on.expect_only(0, when="after one attempt was committed and the other swept")


class SweepChecks(SinkHooks):
    """Checks that a sweep finds everything that a run left open, and nothing of others."""

    # --- remains of dead writers ------------------------------------------------------------------------------------

    def test_a_sweep_finds_what_a_dead_writer_left(self) -> None:
        """Finds a prepared transaction whose handle is lost."""
        with scene(self) as on:
            writer = on.open(0)
            forgotten = on.handle(writer.prepare(), rows=2)
            require(len(on.lingering()) == 1, f"one transaction is open, and list_lingering found {on.lingering()}")
            on.sweep()
            on.expect_nothing_lingers("after the sweep")
            on.expect_outcomes(on.commit(forgotten), GONE, what="commit after the sweep")
            writer.close()
            on.expect_only(when="after the sweep")

    def test_a_sweep_takes_exactly_the_runs_it_is_given(self) -> None:
        """Checks that a sweep spares runs with a similar token, runs of a copied checkpoint, and other queries."""
        with scene(self) as on:
            token = on.owner.token
            last = "0" if on.query[-1] != "0" else "1"
            neighbours = {
                "a token that begins alike": on.make_owner(position=token.position * 10, nonce=token.nonce),
                "an older token": on.make_owner(position=token.position - 1, nonce=token.nonce),
                "the same position with another nonce": on.make_owner(position=token.position),
                "another query": on.make_owner(position=token.position, nonce=token.nonce, query=on.query[:-1] + last),
            }
            own = on.prepare(0)
            for what, neighbour in neighbours.items():
                on.expect_nothing_lingers(f"of {what}", neighbour)
            found = on.lingering(on.owner, *neighbours.values())
            require(len(found) == 1, f"a list of several runs must find what one of them left, and found {found}")
            on.expect_outcomes(on.commit(own), COMMITTED, what="commit after others were asked for")
            on.expect_nothing_lingers("after the commit")

    @needs("other_facts")
    def test_a_sweep_does_not_find_a_neighbours(self) -> None:
        """Checks that a sweep spares a sink with different facts, for example with a longer prefix."""
        with scene(self) as on:
            facts = self.other_facts(on.facts)
            if facts is None:
                raise AssertionError("other_facts must return facts, or not be overridden")
            token = on.owner.token
            neighbour = on.make_owner(position=token.position, nonce=token.nonce, facts=facts)
            theirs = on.prepare(0, owner=neighbour)
            on.expect_nothing_lingers("of this run")
            require(len(on.lingering(neighbour)) == 1, "the neighbour's transaction is open, and was not found")
            on.expect_outcomes(on.commit(theirs), COMMITTED, what="commit of the neighbour's")

    def test_a_sweep_of_an_older_run_spares_the_newer_one(self) -> None:
        """Sweeps an older run, and checks that the newer run's prepared transaction remains."""
        with scene(self) as on:
            newer = on.make_owner(position=on.owner.token.position + 1)
            old = on.prepare(0)
            new = on.prepare(10, owner=newer)
            on.sweep(on.owner)
            on.expect_outcomes(on.commit(new, old), COMMITTED, GONE, what="commit of the newer run's and the swept")
            on.expect_only(10, when="after the older run was swept")

    def test_what_is_finished_does_not_linger(self) -> None:
        """Checks that committed and aborted transactions are not listed as open."""
        with scene(self) as on:
            on.commit(on.prepare(0))
            on.abort(on.prepare(10, slot=1))
            on.expect_nothing_lingers("after a commit and an abort")

    @needs("make_second_sink")
    def test_two_sinks_of_a_query_do_not_disturb_each_other(self) -> None:
        """Uses two sinks that share query, token and slot, and differ only by name."""
        second = self.make_second_sink()
        if second is None:
            raise AssertionError("make_second_sink must return a sink, or not be overridden")
        with scene(self) as on, scene(self, second) as beside:
            require(second.name != on.sink.name, "make_second_sink must give its sink another name")
            beside.query, beside.facts = on.query, second.preflight(on.query, None)
            beside.owner = beside.make_owner(position=on.owner.token.position, nonce=on.owner.token.nonce)
            first_writer, second_writer = on.open(0), beside.open(10)
            first = on.handle(first_writer.prepare(), rows=2)
            other = beside.handle(second_writer.prepare(), rows=2)
            first_writer.close()
            second_writer.close()
            on.expect_outcomes(on.commit(first), COMMITTED, what="commit of the first sink's")
            beside.expect_outcomes(beside.commit(other), COMMITTED, what="commit of the second sink's")
            on.expect_visible(0, 10, when="after both sinks of a query were committed")


class TraceChecks(SinkHooks):
    """Checks that traces show what the query has committed, in which runs, and nothing that belongs to others."""

    @needs("leaves_traces")
    def test_a_trace_is_left_by_what_is_committed_and_by_nothing_else(self) -> None:
        """Checks that open, prepared and aborted transactions leave no traces, since no log has to contain them."""
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
        """Checks the batches in traces. A batch after the newest decided one reveals an outdated log."""
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
        """Checks that every trace has the token of its run, and that no other query's traces are listed."""
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


class SystemChecks(SinkHooks):
    """Checks timeouts, restarts, preflight, columns, pickling, and writing without transactions."""

    # --- faults of the system ---------------------------------------------------------------------------------------

    @needs("expire")
    def test_a_transaction_that_timed_out_is_lost(self) -> None:
        """Checks that the outcome is LOST, not UNKNOWN, so that the query may rewrite the rows."""
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
        """Checks that no committed handle is missing, even if the system has forgotten it a thousand batches later."""
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
        """Offers accepted and rejected rows, in two record batches. Only the accepted ones may become visible."""
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
        """Offers only rejected rows, and checks that the writer can abort and nothing lingers."""
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
        """Checks that the timeout is positive, or None if the system never aborts a transaction."""
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


class SinkConformance(CommitChecks, AbortChecks, SweepChecks, TraceChecks, SystemChecks):
    """Checks of a `TwoPhaseCommitSink`. Its hooks are described in `sparkonce.testing.hooks.SinkHooks`."""

    @classmethod
    def checks(cls) -> list[str]:
        """Lists the names of this suite's checks, for running them without pytest."""
        return sorted(name for name in dir(cls) if name.startswith("test_") and callable(getattr(cls, name)))
