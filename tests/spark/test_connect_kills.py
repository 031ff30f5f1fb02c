"""Queries of Spark Connect are killed at every phase: each system shows all of a batch or none of it.

Eight queries share one server. Each is held at another point, and then their processes are killed, or the whole server
is, or their client, or the queries are stopped. The next start commits or undoes everything that is left. Without its
client, a query continues until another client starts it again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from eventually import LIMIT_S, eventually
from shared_servers import needs_postgres
from spark.connect_server import Client, ConnectServer
from spark.harness import WITHIN_TASKS, Job, Observation, hold_at, hold_cell, kill, observe
from spark.pipeline import ENDED, KAFKA, REFUSED
from spark.test_kills import EVERY, KILLS, ROWS, SYSTEMS, units, what_is_lost, written
from striking.gate import Hold
from striking.points import HALFWAY

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600), needs_postgres]

CORES = 2 + sum(point in WITHIN_TASKS for kills in KILLS for point, _ in kills)


@pytest.fixture
def jobs(kafka, tmp_path) -> Iterator[Sequence[Job]]:
    with ExitStack() as stack:
        yield units(stack, kafka, tmp_path, len(KILLS))


@pytest.mark.parametrize(
    ("fault", "turn"),
    [("stop", 0), *((fault, turn) for fault in ("worker", "server", "client") for turn in (0, 1))],
)
def test_each_row_is_there_once_whatever_is_killed(jobs, tmp_path, fault, turn):
    """The number of positions by which the second kills are shifted, so that they follow different first kills."""
    kills = [(first, KILLS[number - turn][1]) for number, (first, _) in enumerate(KILLS)]
    server = ConnectServer(tmp_path / "first", cores=CORES)
    try:
        seen: list[Sequence[Observation]] = []
        going_on: list[Hold] = []
        for strike in range(2):
            cells = {job: pair[strike] for job, pair in zip(jobs, kills, strict=True)}
            holds = {job: hold_cell(cell, job) for job, cell in cells.items()}
            client = Client(server, jobs, tmp_path / f"client-{strike}.log")
            for job, hold in holds.items():
                await_arrival(job, hold, client)
            for hold in going_on:
                hold.release()  # that run has ended, since another client has started the query again
            seen.append([observe(cells[job][0], job) for job in jobs])
            server = struck(fault, server, client, jobs, tmp_path / f"server-{strike}")
            going_on = list(holds.values())
            if fault != "client" or strike == 1:
                for hold in going_on:
                    hold.release()  # a task that was never ended continues to write, but to no effect
        if fault == "client":
            await_processes_gone(jobs, "the queries have ended without a client")
        else:
            Client(server, jobs, tmp_path / "last.log", rows_per_batch=2 * ROWS).finish()
    finally:
        server.kill()

    for number, job in enumerate(jobs):
        for strike in seen:
            strike[number].check()
        found = job.visible()
        assert found[KAFKA] == found["postgres"] == found["files"], "the systems differ in a batch"
        assert sorted(row for row, _ in found[KAFKA].elements()) == job.ids
        eventually(lambda job=job: job.open() == {kind: [] for kind in SYSTEMS}, f"nothing is open of query {number}")


def test_lost_transactions_of_a_decided_batch_are_written_again(kafka, tmp_path):
    """Half of the batch is committed. A query whose plan returns other rows stops instead, and names the lost rows."""
    with ExitStack() as stack:

        def new_job(name: str, plan: str = "spark.plans:distinct", timeout_ms: int = 10_000) -> Job:
            settings = {"transaction.timeout.ms": timeout_ms}
            return stack.enter_context(Job(kafka.bootstrap, tmp_path / name, plan=plan, settings=settings, **EVERY))

        timed_out, by_operator = new_job("timed out"), new_job("by an operator", timeout_ms=600_000)
        moody = new_job("other rows", "spark.plans:moody")
        jobs = (timed_out, by_operator, moody)
        server = stack.enter_context(ConnectServer(tmp_path / "server"))
        holds = {job: hold_at(HALFWAY, job, lambda batch: batch == 1) for job in jobs}
        client = Client(server, jobs, tmp_path / "client.log")
        for job, hold in holds.items():
            await_arrival(job, hold, client)
        struck("worker", server, client, jobs, tmp_path)
        for name in by_operator.transactions("Ongoing"):  # as kafka-transactions.sh forceTerminateTransaction does it
            Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name}).init_transactions(LIMIT_S)
        lost = {job: what_is_lost(job) for job in jobs}
        assert all(0 < len(slots) < len(written(before)) for before, slots in lost.values())

        last = Client(server, jobs, tmp_path / "last.log", rows_per_batch=2 * ROWS)
        last.wait(LIMIT_S)
        last.kill()
        for job in (timed_out, by_operator):
            before, slots = lost[job]
            after = job.log().decision(1)
            assert {one.slot for one in set(before.handles) - set(after.handles)} == slots
            assert job.judge() == ""

        before, slots = lost[moody]
        refused, ended = moody.gate.last(REFUSED), moody.gate.last(ENDED)
        assert ended is not None
        assert (refused.told["kind"], refused.told["batch"]) == ("TransactionLostError", 1)
        named = ast.literal_eval(refused.told["details"]["lost"])
        assert named == tuple((KAFKA, one.slot, one.rows) for one in before.handles if one.slot in slots)
        assert moody.log().decision(1) == before
        assert moody.transactions("Ongoing") == {}
        assert "TransactionLostError" in ended.told["failed"], "the client's exception says it"


def await_arrival(job: Job, hold: Hold, client: Client) -> None:
    job.gate.wait_for(lambda: bool(hold.arrivals), hold.words, client.check)
    hold.cancel()


def struck(fault: str, server: ConnectServer, client: Client, jobs: Sequence[Job], folder: Path) -> ConnectServer:
    """Strikes all queries, and returns the server for the next start once none of their processes is left."""
    processes = [phase.pid for job in jobs if (phase := job.phase()) is not None]
    assert len(processes) == len(jobs) == len(set(processes))
    if fault == "server":
        server.kill()
    if fault in ("server", "client"):
        client.kill()
        return ConnectServer(folder, cores=CORES) if fault == "server" else server
    if fault == "stop":
        client.send("stop")
    for pid in processes if fault == "worker" else ():
        kill(pid)
    client.wait(LIMIT_S)
    client.kill()
    await_processes_gone(jobs, "the queries' processes are gone")
    return server


def await_processes_gone(jobs: Sequence[Job], what: str) -> None:
    processes = [phase.pid for job in jobs if (phase := job.phase()) is not None]
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), what)
