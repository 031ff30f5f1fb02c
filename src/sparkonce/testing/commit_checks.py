"""Checks of prepare and commit: when a reader sees which rows."""

from __future__ import annotations

from sparkonce.testing.hooks import SinkHooks, needs
from sparkonce.testing.scene import ALREADY_COMMITTED, COMMITTED, GONE, altered, require, scene


class CommitChecks(SinkHooks):
    """Checks that readers see nothing before a commit, and exactly the committed rows after it, even if repeated."""

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
        """Repeats a commit, as a driver does that does not know whether it was applied."""
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
        """Checks that each handle gets its own outcome, in the order of the call; see ``loses_whole_batches``."""
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
        """Concludes repeatedly, including from a run that takes over a batch that an earlier one had finished."""
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

        For earlier batches, whose ids have been reused by later ones, a system may return LOST: the driver reads the
        log first.
        """
        with scene(self) as on:
            handles = []
            for batch in range(3):  # one after the other, like the driver: an id may be reused for a later one
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
