from __future__ import annotations

import inspect

import pytest

from sparkonce.sink import SinkCommitter, SinkWriter, TwoPhaseCommitSink
from sparkonce_lab.forwarding import ForwardingCommitter, ForwardingSink, ForwardingWriter


@pytest.mark.parametrize(
    ("kind", "base"),
    [(ForwardingSink, TwoPhaseCommitSink), (ForwardingWriter, SinkWriter), (ForwardingCommitter, SinkCommitter)],
)
def test_every_call_is_passed_on(kind: type, base: type) -> None:
    """A call that is added to the base and not here would end in the base's own, which does nothing."""
    asked: list[tuple[str, tuple[object, ...]]] = []

    class Real:
        name, guarantee, promise, tells_refused = "real", "exactly-once", "of the real one", True
        takes_dead_letters, writes_with_session = False, True
        target_name, kafka_settings = "a topic", {"bootstrap.servers": "broker:9092"}

        def __getattr__(self, name: str) -> object:
            return lambda *given: asked.append((name, given)) or name

    calls = {name: call for name, call in vars(base).items() if inspect.isfunction(call) and not name.startswith("_")}
    assert len(calls) >= 5
    passing = kind(Real())
    for name, call in calls.items():
        given = tuple(object() for _ in list(inspect.signature(call).parameters)[1:])
        answer = getattr(passing, name)(*given)
        assert asked.pop() == (name, given)
        assert answer == name or inspect.signature(call).return_annotation == "None"
    for name in (name for name, value in vars(base).items() if isinstance(value, property)):
        assert getattr(passing, name) == getattr(Real, name)
