from __future__ import annotations

import fcntl
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sparkonce.decision_log import DecisionLog
from sparkonce.driver.outage import Timing
from sparkonce.driver.split_run import Handover, SplitRun, continued, resumed
from sparkonce.driver.start import read_log
from sparkonce.errors import PrepareError, SupersededError
from sparkonce.protocol import effects as do
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import Batch, State
from sparkonce.protocol.view import Claim
from sparkonce.spark.formats import ends as ends_module
from sparkonce.spark.formats.ends import Ends, StoredRun
from sparkonce.storage.local import LocalFiles
from unit.driver_world import QUERY, asked, numbers

OURS = Claim(nonce="aaaa", run="ours", query="q")
NEWER = Claim(nonce="bbbb", run="newer", query="q")


@pytest.fixture
def log(tmp_path) -> DecisionLog:
    log = DecisionLog(LocalFiles(tmp_path))
    log.put(0, OURS)
    return log


def test_a_half_ends_what_another_began_unless_a_newer_run_has_claimed(log):
    view = read_log(log)
    begun = Handover(
        state=State(
            claim=OURS, token=Token(0, OURS.nonce), batch=Batch(number=7, offsets=("7",), previous_offsets=None)
        ),
        position=view.end,
        effect=do.Write(batch=7, sinks=("out",)),
        owners={},
        opened_s=0.0,
    )
    assert resumed(begun, log) == replace(begun.state, view=view)

    log.put(1, NEWER)
    with pytest.raises(SupersededError, match="a newer run has claimed the query"):
        resumed(begun, log)


def test_a_claim_is_gone_on_with_unless_a_newer_run_has_claimed(log):
    ours = Token(0, OURS.nonce)
    state = continued(OURS, ours, read_log(log), ("out",), moved=False)
    assert (state.token, state.view.end) == (ours, 1)

    log.put(1, NEWER)
    assert continued(OURS, ours, read_log(log), ("out",), moved=False) is None


def test_a_half_heals_a_batch_whose_slots_come_in_another_order(world):
    """After the tasks have ended, they cannot write other slots.

    So they write all slots, and one of them is used.
    """

    def half(known: State | None = None) -> SplitRun:
        sinks, timing = world.sinks(), Timing(sweep_every_s=0)
        return SplitRun(run="r", query=QUERY, sinks=sinks, log=world.log, timing=timing, known=known)

    def batch(order: list[int], behind: Callable[[], None] = lambda: None) -> None:
        begun = half().begin_batch(asked(0))
        assert begun is not None
        work = world.work(0)
        work.orders = [order]
        handles, _ = work.write(begun.owners, begun.effect.only)
        behind()
        half(resumed(begun, world.log)).finish_batch(begun, handles, loser_possible=False)

    def lose_the_first() -> None:
        world.server.expire(min(world.server.transactions()))

    with pytest.raises(PrepareError, match="has to be written again"):
        batch([0, 1, 2], lose_the_first)
    assert world.visible() == numbers(0, slots=[1, 2])

    batch([2, 0, 1])
    assert world.visible() == numbers(0)
    assert world.unfinished() == []


def test_a_driver_that_was_deposed_leaves_its_batch_to_the_newer_run(world):
    (sink,) = world.sinks().values()
    log = world.log
    ends = Ends(sink=sink, log=log, query=QUERY)
    begun = ends.begin(asked(0))
    log.put(begun.position, replace(NEWER, query=QUERY))
    ends.abort(asked(0), begun)
    assert read_log(log).end == begun.position + 1


def test_a_claim_in_a_file_that_was_replaced_while_it_was_locked_is_not_kept(tmp_path, monkeypatch):
    """A process that waits for the lock of a stalled process creates a new file in its place."""
    monkeypatch.setattr(ends_module, "_folder", lambda: tmp_path)
    with StoredRun("driver") as one:
        one.keep(OURS, Token(0, OURS.nonce))

    def locks_too_late(descriptor: int, how: int) -> None:
        fcntl.flock(descriptor, how)
        monkeypatch.setattr(ends_module, "fcntl", fcntl)
        (tmp_path / "driver.run").unlink()
        (tmp_path / "driver.run").touch()

    monkeypatch.setattr(ends_module, "fcntl", SimpleNamespace(flock=locks_too_late, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=0))
    with StoredRun("driver") as other:
        assert other.found is None
