"""A query's listener, on a run without Spark: what it forwards, and what it costs a batch."""

import pytest

from sparkonce.errors import PrepareError
from sparkonce.protocol.state import Phase
from sparkonce.sinks.memory import MemorySink
from sparkonce.storage.local import LocalFiles
from sparkonce.watch.listener import QueryListener
from sparkonce.watch.timeline import TimelineReader
from unit.driver_world import QUERY, World, asked


def test_who_watches_sees_the_same_batches(tmp_path):
    world, told = World(tmp_path), list[tuple[Phase, int]]()
    listener = QueryListener(lambda phase, batch: told.append((phase, batch)), display=False)
    driver = world.start(listener)
    listener.begin_run(QUERY, "r1", driver, LocalFiles(tmp_path))
    for batch in (0, 1):
        listener.committed(driver.run_batch(asked(batch), world.work(batch)))
    world.server.fail("write", PrepareError("a NUL"))
    with pytest.raises(PrepareError) as raised:
        driver.run_batch(asked(2), world.work(2))
    listener.failed(2, raised.value)
    listener.end_run("r1")

    (segment,) = TimelineReader(LocalFiles(tmp_path)).read()
    for number, seen in enumerate(segment.batches):
        of_batch = [phase.value for phase, batch in told if batch == number]
        assert [*(phase for phase, _ in seen.phases), "idle"] == list(dict.fromkeys(of_batch))
        assert seen.rows == {"memory": 6}
    watched = listener.figures.watched()
    assert (watched.totals.batches, watched.phase, watched.totals.stops) == (2, Phase.STOPPED, {"PrepareError": 1})
    assert [one.kind for one in segment.events] == ["started", "stopped"]


def test_a_batch_looks_nothing_up_for_those_who_watch(tmp_path, monkeypatch):
    world, asked_for = World(tmp_path), []
    world.timeouts_s["memory"] = 600.0
    lifetime = MemorySink.transaction_timeout_s
    monkeypatch.setattr(
        MemorySink, "transaction_timeout_s", lambda sink, facts: asked_for.append(sink) or lifetime(sink, facts)
    )
    listener = QueryListener(display=False, timeline=False)
    driver = world.start(listener)
    listener.begin_run(QUERY, "r1", driver, LocalFiles(tmp_path))
    for batch in range(3):
        listener.committed(driver.run_batch(asked(batch), world.work(batch)))
    assert listener.figures.watched().lifetimes_s == {"memory": 600.0}
    assert len(asked_for) == 1, "once per run"
