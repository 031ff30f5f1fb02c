from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from sparkonce import await_end
from sparkonce.errors import ConfigurationError, QueryFailedError
from sparkonce.spark.job import ending
from unit.queries import TOLD, Failed, FakeQuery, send

HANDLERS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _handlers_are_put_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in HANDLERS]
    yield
    assert [signal.getsignal(number) for number in HANDLERS] == before


@pytest.mark.parametrize("number", HANDLERS)
def test_a_signal_stops_all_queries_in_order(number, capsys):
    queries = [FakeQuery("totals"), FakeQuery("")]
    send(number)
    await_end(*queries)
    assert all(query.stops for query in queries)
    said = capsys.readouterr().err
    assert said.startswith(f"{signal.Signals(number).name}: stopping 'totals', {queries[1].id[:8]}")
    assert said.count("\n") == 1


def test_a_second_signal_ends_the_process_at_once(monkeypatch):
    codes = []

    def end(code: int) -> None:
        codes.append(code)
        query.end()

    class Slow(FakeQuery):
        def stop(self) -> None:
            self.stops += 1

    query = Slow()
    monkeypatch.setattr(ending, "_SENT_TWICE_S", 0.0)
    monkeypatch.setattr(ending.os, "_exit", end)
    send(signal.SIGTERM)
    send(signal.SIGINT, lambda: query.stops > 0)
    await_end(query)
    assert codes == [130]


def test_a_signal_that_does_not_interrupt_the_wait_is_handled(monkeypatch):
    """It may arrive just before Python waits, or the kernel may give it to another thread, as here."""
    query = FakeQuery()
    monkeypatch.setattr(ending, "_SIGNALS_EVERY_S", 0.05)
    send(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLERS)
    try:
        await_end(query)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLERS)
    assert query.stops == 1


def test_a_signal_that_comes_twice_at_once_is_one(monkeypatch):
    """A terminal sends the signal to all processes, and a parent program passes it on."""
    query = FakeQuery()
    monkeypatch.setattr(ending, "_SENT_TWICE_S", 3600.0)
    monkeypatch.setattr(ending.os, "_exit", lambda _: pytest.fail("it ended at once"))
    with ending.stopped_by_signals(lambda: [query]) as stopping:
        for _ in range(2):
            stopping._on_signal(signal.SIGINT, None)
        assert query.awaitTermination(60)
    assert query.stops == 1


def test_a_child_that_is_forked_meanwhile_ends_by_a_signal(monkeypatch):
    query, killed = FakeQuery(), []
    here = ending.os.getpid()
    with ending.stopped_by_signals(lambda: [query]) as stopping:
        monkeypatch.setattr(ending.os, "getpid", lambda: here + 1)
        monkeypatch.setattr(ending.os, "kill", lambda pid, number: killed.append((pid, number)))
        stopping._on_signal(signal.SIGTERM, None)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert killed == [(here + 1, signal.SIGTERM)]
    assert not query.stops


def test_a_second_interrupt_takes_no_notebook_away_from_its_user(monkeypatch):
    class Slow(FakeQuery):
        def stop(self) -> None:
            self.stops += 1

    query = Slow()
    monkeypatch.setattr(ending, "_SENT_TWICE_S", 0.0)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    send(signal.SIGINT)
    send(signal.SIGINT, lambda: query.stops > 0)
    with pytest.raises(KeyboardInterrupt):
        await_end(query)
    query.end()


def test_a_failure_is_told_in_two_lines_and_ends_the_process_with_1(capsys):
    other = FakeQuery("other")
    with pytest.raises(SystemExit) as ended:
        await_end(other, FakeQuery(error=Failed()))
    assert ended.value.code == 1
    assert capsys.readouterr() == ("", TOLD)
    assert other.stops

    with pytest.raises(SystemExit):
        await_end(FakeQuery(error=Failed()), traceback=True)
    said = capsys.readouterr().err
    assert "=== Streaming Query ===" in said
    assert said.endswith(TOLD)


def test_in_another_thread_a_failure_is_raised(capsys):
    raised: list[BaseException] = []

    def run() -> None:
        try:
            await_end(FakeQuery(error=Failed()))
        except BaseException as error:  # noqa: BLE001 - the test examines any error
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert [type(error) for error in raised] == [QueryFailedError]
    assert capsys.readouterr() == ("", "")


def test_a_notebook_shows_message_and_next_step_alone(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(QueryFailedError) as raised:
        await_end(FakeQuery(error=Failed()))
    assert "\n".join([*raised.value._render_traceback_(), ""]) == TOLD
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(("signalled", "code"), [(True, 143), (False, 1)])
def test_where_spark_itself_has_ended_the_query_is_not_blamed(signalled, code, monkeypatch, capsys):
    class Gone(FakeQuery):
        """Its JVM gets the same signal, and dies with it."""

        def stop(self) -> None:
            self._error = ConnectionRefusedError("nobody there")
            super().stop()

    query = Gone(error=None if signalled else ConnectionRefusedError("nobody there"))
    monkeypatch.setattr(ending, "spark_is_gone", lambda: True)
    if signalled:
        send(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        await_end(query)
    assert ended.value.code == code
    assert "Spark was stopped under the query 'totals'" in capsys.readouterr().err


@pytest.mark.parametrize("given", [60, None, [FakeQuery()], "totals"])
def test_what_is_no_query_is_refused_and_stops_none(given):
    query = FakeQuery()
    with pytest.raises(ConfigurationError, match="that is not a query"):
        await_end(query, given)
    assert not query.stops


def test_no_query_is_refused():
    with pytest.raises(ConfigurationError, match="was given no query"):
        await_end()
