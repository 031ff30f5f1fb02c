from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from eventually import eventually
from sparkonce.driver.sinks import Monitors
from sparkonce.sink import Monitor
from sparkonce.sinks.memory import MemorySink

THREAD = "sparkonce-monitor"


class Watched(Monitor):
    def __init__(self) -> None:
        self.polled: list[float] = []
        self.threads: set[str] = set()
        self.closed = self.fails = False

    def poll(self, batch_s: float) -> None:
        self.polled.append(batch_s)
        self.threads.add(threading.current_thread().name)
        if self.fails:
            raise RuntimeError("no broker")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def watched(monkeypatch) -> Iterator[Watched]:
    made, before = Watched(), set(threading.enumerate())
    monkeypatch.setattr(MemorySink, "monitor", lambda *_: made)
    yield made
    began = set(threading.enumerate()) - before
    eventually(lambda: not any(thread.name == THREAD and thread.is_alive() for thread in began), "its thread has ended")


def test_a_run_polls_at_its_start_and_again_and_not_after_its_end(world, watched):
    watched.fails = True  # a failed check does not prevent the next one
    driver = world.start(monitor_every_s=0.01)
    eventually(lambda: len(watched.polled) > 2, "it polls again")
    world.run(driver, 0)
    eventually(lambda: watched.polled[-1] == driver.progress[-1].total_seconds, "it knows how long a batch takes")
    assert not watched.closed
    driver.close()
    eventually(lambda: watched.closed, "it is closed")
    assert watched.threads == {THREAD}


def test_a_run_without_it_polls_nothing(world, watched, caplog):
    driver = world.start()
    world.run(driver, 0)
    driver.close()
    assert watched.polled == []

    def fails() -> list[Monitor]:
        raise RuntimeError("no settings")

    caplog.set_level("DEBUG", "sparkonce")
    Monitors(fails, 0.01).start()
    eventually(lambda: "are not checked" in caplog.text, "it is said")
