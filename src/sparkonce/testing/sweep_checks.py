"""Checks of ``list_lingering``: it finds what dead writers leave open."""

from __future__ import annotations

from sparkonce.testing.hooks import SinkHooks, needs
from sparkonce.testing.scene import COMMITTED, GONE, require, scene


class SweepChecks(SinkHooks):
    """Checks that a sweep finds everything that a run left open, and nothing that belongs to others."""

    # --- what a dead writer leaves ----------------------------------------------------------------------------------

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
        """Spares a run whose token starts the same, the same position in a copied checkpoint, and another query."""
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
        """Spares a sink whose facts differ, for example by a longer prefix."""
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
        """Sweeps an older run. What the newer one has prepared remains."""
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
