"""Which batches a starting run checks on the servers, and its messages.

Uses a memory sink whose server can be made to forget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from sparkonce.driver.start import check_servers
from sparkonce.errors import ConfigurationError, StaleServerError, UnknownOutcomeError
from sparkonce.protocol import effects as do
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim, Commit, LogView
from sparkonce.sink import Owner, SinkCommitter

Facts = Mapping[str, str]
NOW: Facts = {"prefix": "p"}


class Server(SinkCommitter):
    def __init__(self, committed: Sequence[str] = (), prepared: Sequence[str] = ()) -> None:
        self.committed, self.prepared = set(committed), set(prepared)
        self.asked: list[str] = []
        self.silent = 0
        self.concluded: list[int] = []

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        if self.silent:
            self.silent -= 1
            raise UnknownOutcomeError("not now")
        self.asked += [str(one["name"]) for one in handles]
        return [one for one in handles if one["name"] not in self.committed]

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        names = [str(one["name"]) for one in handles]
        self.committed |= {name for name in names if name in self.prepared}
        return [Finished(outcome=Outcome.COMMITTED if one in self.prepared else Outcome.LOST) for one in names]

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        self.concluded.append(batch)

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        raise NotImplementedError

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        raise NotImplementedError


class Log:
    def __init__(self) -> None:
        self.view = LogView()
        self.run()

    def run(self, facts: Facts | None = NOW) -> Log:
        sinks = () if facts is None else (("s", tuple(sorted(facts.items()))),)
        self.token = Token(self.view.end, "n")
        self.view = self.view.apply(self.view.end, Claim(nonce="n", run="r", query="q", sinks=sinks))
        return self

    def batch(self, number: int, *names: str, sink: str = "s") -> Log:
        handles = tuple(
            Handle(sink=sink, slot=slot, transaction=(("name", name),) if name else ())
            for slot, name in enumerate(names)
        )
        record = Commit(token=self.token, query="q", batch=number, offsets=(), handles=handles)
        self.view = self.view.apply(self.view.end, record)
        return self

    def check(self, batch: int, server: Server, accepted: Mapping[str, int] | None = None, within_s: float = 0) -> None:
        effect = do.CheckServers(batch=batch, sinks=("s",), view=self.view)
        check_servers(effect, lambda _: server, accepted or {}, within_s)


def test_which_batches_are_asked_for():
    server = Server("abc")
    Log().batch(0, "a").batch(1, "b", "c").run().check(2, server)
    assert server.asked == ["b", "c"]

    server = Server("a")
    Log().batch(0, "a").batch(1, "b").run().check(1, server)
    assert server.asked == ["a"]

    server = Server()
    Log().check(0, server)
    Log().batch(0, "").batch(1).batch(2, "x", sink="gone").run().check(3, server)
    assert server.asked == []

    with pytest.raises(StaleServerError, match="no longer has batch 0"):
        Log().batch(0, "a").batch(1, "").batch(2).run().check(3, Server())

    server, log = Server(), Log().batch(0, "a").run()
    log.view = replace(log.view, runs=log.view.runs[1:])
    log.check(1, server)
    assert server.asked == []


@pytest.mark.parametrize("between", [None, {}, {"prefix": "other"}])
def test_a_batch_from_before_the_facts_changed_is_not_asked_for(between):
    """In between, the sink was removed, or had a lower guarantee or another prefix.

    Now it has its original settings again.
    """
    server = Server()
    log = Log().batch(0, "a").run(between).batch(1, "").run()
    log.check(2, server)
    assert server.asked == []
    with pytest.raises(StaleServerError, match="no longer has batch 2\\."):
        log.batch(2, "c").run().check(3, server)


def test_lost_batches_are_named_and_may_be_accepted():
    log = Log().batch(0, "a").batch(1, "b").batch(2, "c").batch(3, "d").run()
    with pytest.raises(StaleServerError, match="no longer has batches 2 and 3") as caught:
        log.check(4, Server("ab"))
    assert caught.value.details["missing"] == {"s": [2, 3]}
    with pytest.raises(StaleServerError, match="no longer has batches 1 to 3") as caught:
        log.check(4, Server("a"))
    assert "accept_lost_batches={'s': 3}" in caught.value.next_step

    server, log = Server("a"), Log().batch(0, "a").batch(1, "b").run()
    log.check(2, server, {"s": 1})
    assert server.asked == []
    with pytest.raises(StaleServerError) as caught:
        log.batch(2, "c").run().check(3, server, {"s": 1})
    assert caught.value.details["missing"] == {"s": [2]}

    with pytest.raises(ConfigurationError, match="batch 1 is next"):
        Log().batch(0, "a").run().check(1, Server("a"), {"s": 1})


def test_a_commit_that_can_be_made_again_is():
    server = Server("a", prepared="b")
    Log().batch(0, "a", "b").run().check(1, server)
    assert (server.committed, server.concluded) == ({"a", "b"}, [0])


def test_a_server_that_does_not_answer_is_asked_until_the_deadline():
    server, log = Server("a"), Log().batch(0, "a").run()
    server.silent = 1
    with pytest.raises(UnknownOutcomeError):
        log.check(1, server)
    server.silent = 1
    log.check(1, server, within_s=60.0)
    assert server.asked == ["a"]
