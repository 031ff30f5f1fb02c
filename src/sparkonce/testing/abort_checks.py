"""Checks of aborts, of writers that give up, and of losing task attempts: a reader never sees their rows."""

from __future__ import annotations

import gc

from sparkonce.testing.hooks import SinkHooks, needs
from sparkonce.testing.scene import ABORTED, ALREADY_COMMITTED, COMMITTED, GONE, require, scene


class AbortChecks(SinkHooks):
    """Checks that an abort leaves nothing behind, and that no abort undoes a commit."""

    # --- abort ------------------------------------------------------------------------------------------------------

    def test_an_abort_hides_for_ever(self) -> None:
        """Checks that aborted rows never reappear, whatever is committed later."""
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
            except Exception:  # noqa: BLE001 - whatever it raises, the attempt gives up
                writer.abort()
            else:
                late = on.handle(fields, rows=4)
                writer.close()
                on.expect_outcomes(on.commit(late), GONE, what="commit of what was written after the abort")
            on.expect_only(when="after a writer went on that had been aborted")

    # --- the writer gives up ----------------------------------------------------------------------------------------

    def test_a_writer_gives_up_before_it_begins(self) -> None:
        """Aborts before begin, as when another sink's writer failed before this one got rows."""
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
            require(handles[0].transaction != handles[1].transaction, "two copies of a slot have the same handle")
            on.expect_outcomes(on.commit(handles[winner]), COMMITTED, what="commit of the copy that won")
            on.sweep()
            on.expect_outcomes(on.commit(handles[1 - winner]), GONE, what="commit of the copy that lost")
            on.expect_only(0, when="after one copy was committed and the other swept")
