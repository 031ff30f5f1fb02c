"""A query into Kafka, PostgreSQL and files is killed at each of `striking.points`. Systems show all of a batch or none.

Starting Spark takes most of the time, so seven of these queries share a driver with two that lose transactions. Each
query is held at a different point while the systems are read. Then a SIGKILL ends the driver with its JVM and workers,
and the systems are read again. After two kills, a last driver writes the rest.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from shared_servers import needs_postgres, postgres_server
from spark.harness import Cell, Job, Observation, start_together, strike
from spark.pipeline import ENDED, KAFKA, REFUSED
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.view import Decision
from sparkonce.storage.local import LocalFiles
from sparkonce.watch.timeline import TimelineReader
from sparkonce_lab.kafka import describe_transactions, read_committed
from sparkonce_lab.rig.kafka import Cluster
from sparkonce_lab.systems.files import FilesSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from striking.points import BEFORE_CONCLUDE, HALFWAY, IN_DRIVER, PREPARED, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800), needs_postgres]

ROWS = 1_200
EVERY: Mapping[str, Any] = {
    "rows": ROWS,
    "rows_per_batch": 200,
    "slots": 2,
    "keep_batches": 2,
    "tidy_every_batches": 1,
    "points": (WRITTEN, PREPARED, HALFWAY, BEFORE_CONCLUDE),
}
SYSTEMS = (KAFKA, "postgres", "files")

KILLS: Sequence[tuple[Cell, Cell]] = (
    # The second kill finds what the first has left behind. Only a decided batch is replayed.
    (("READING", {}), ("SWEEPING_OWN", {})),
    (("CLAIMING", {}), ("TIDYING", {})),
    ((WRITTEN, {"sink": "kafka"}), ("RAISING_FLOOR", {})),
    ((PREPARED, {"sink": "postgres"}), ("SWEEPING", {})),
    (("DECIDING", {}), ("IDLE", {})),
    (("FINISHING", {}), ("REPLAYING", {})),
    ((HALFWAY, {"sink": "kafka"}), ("WRITING", {})),
    ((BEFORE_CONCLUDE, {"sink": "files"}), ("DECIDING", {})),
)
PHASES = KILLS[:-1]
"""They hit each of `striking.points`. `test_connect_kills` needs the others too; the crash matrix has them per sink."""


@dataclass(frozen=True, slots=True)
class Killed:
    """All queries after their kills and their last run.

    Attributes:
        jobs: The queries into three systems.
        seen: What the systems showed at each query's two kills.
        lost: The queries that lost transactions, by their plans, with the decision before the last run and the slots
            that the broker aborted. `moody` computes different rows each time.
    """

    jobs: Sequence[Job]
    seen: Sequence[Sequence[Observation]]
    lost: Mapping[str, tuple[Job, Decision, set[int]]]


def units(stack: ExitStack, kafka: Cluster, folder: Path, count: int) -> list[Job]:
    """Some queries into three systems.

    Half of them drop duplicates, so a batch that is written again must find the same state as before.
    """
    jobs = []
    for number in range(count):
        systems = (PostgresSystem(commit="staged", server=postgres_server()), FilesSystem(folder))
        placed = [stack.enter_context(one.placed(folder, "id text", "batch bigint")) for one in systems]
        drops = number >= count // 2
        plan = f"spark.plans:{'distinct' if drops else 'stateless'}"
        job = Job(kafka.bootstrap, folder / f"unit-{number}", again=drops, plan=plan, systems=placed, **EVERY)
        jobs.append(stack.enter_context(job))
    return jobs


@pytest.fixture(scope="module")
def killed(kafka, tmp_path_factory) -> Iterator[Killed]:
    folder = tmp_path_factory.mktemp("killed")
    with ExitStack() as stack:
        jobs = units(stack, kafka, folder, len(PHASES))
        losing = {}  # when they are killed, half of their batch 1 is committed; the broker aborts the other half
        for plan in ("distinct", "moody"):
            settings = {"transaction.timeout.ms": 10_000}
            job = Job(kafka.bootstrap, folder / plan, plan=f"spark.plans:{plan}", settings=settings, **EVERY)
            losing[plan] = stack.enter_context(job)
        first = {job: kills[0] for job, kills in zip(jobs, PHASES, strict=True)}
        first |= {job: (HALFWAY, {}) for job in losing.values()}
        seen = [strike(first, folder / "first.log", {job: (lambda batch: batch == 1) for job in losing.values()})]
        seen.append(strike({job: kills[1] for job, kills in zip(jobs, PHASES, strict=True)}, folder / "second.log"))

        lost = {name: (job, *what_is_lost(job)) for name, job in losing.items()}
        for job in losing.values():  # on a busy machine, the last run would be too slow for short transactions
            sinks = {KAFKA: {"settings": {"bootstrap.servers": kafka.bootstrap}, "topic": job.config.target}}
            job.config = replace(job.config, sinks=sinks)
        everything = [*jobs, *losing.values()]
        start_together(everything, folder / "last.log", rows_per_batch=2 * ROWS).join()
        yield Killed(jobs, [[observations[job] for observations in seen] for job in jobs], lost)


def what_is_lost(job: Job) -> tuple[Decision, set[int]]:
    """Waits until the broker has aborted a killed query's open transactions. Returns the lost slots of batch 1."""
    job.await_aborted()
    decision = job.log().decision(1)
    assert decision is not None
    states = describe_transactions(job.bootstrap, [str(one["transactional_id"]) for one in written(decision)])
    aborted = {name for name, one in states.items() if one.state != "CompleteCommit"}
    return decision, {one.slot for one in written(decision) if one["transactional_id"] in aborted}


def written(decision: Decision) -> list[Handle]:
    return [handle for handle in decision.handles if handle.transaction]


@pytest.mark.parametrize("number", range(len(PHASES)), ids=["-".join(point for point, _ in one) for one in PHASES])
def test_a_batch_is_visible_once_it_is_decided_and_each_row_is_there_once(killed, number):
    job = killed.jobs[number]
    for observation in killed.seen[number]:
        observation.check()
        if observation.point in ("DECIDING", "FINISHING"):
            assert observation.after == observation.visible, "somebody has committed after the kill"
    assert [one.told["failed"] for one in job.gate.at(ENDED)] == [""], "only the last run has ended on its own"
    found = job.visible()
    assert found[KAFKA] == found["postgres"] == found["files"], "the systems differ in a batch"
    assert sorted(row for row, _ in found[KAFKA].elements()) == job.ids
    assert job.open() == {kind: [] for kind in SYSTEMS}
    # The process exits right after its queries, without closing them.
    assert TimelineReader(LocalFiles(job.checkpoint)).read()[-1].events[-1].kind == "ended"


def test_every_phase_is_hit():
    assert {point for kills in PHASES for point, _ in kills} >= {*IN_DRIVER, WRITTEN, PREPARED, HALFWAY}


def test_what_the_broker_aborted_of_a_decided_batch_is_written_again(killed):
    job, before, lost = killed.lost["distinct"]
    assert 0 < len(lost) < len(written(before))
    after = job.log().decision(1)
    assert {one.slot for one in set(before.handles) - set(after.handles)} == lost
    assert [one.evidence for one in after.handles] == [one.evidence for one in before.handles]
    assert job.judge() == ""


def test_a_plan_that_gives_other_rows_stops_with_an_exact_report_and_writes_nothing(killed):
    job, before, lost = killed.lost["moody"]
    assert 0 < len(lost) < len(written(before))
    refused, ended = job.gate.last(REFUSED), job.gate.last(ENDED)
    assert (refused.told["kind"], refused.told["batch"]) == ("TransactionLostError", 1)
    assert "TransactionLostError" in ended.told["failed"]
    details = {name: ast.literal_eval(text) for name, text in refused.told["details"].items()}
    assert details["lost"] == tuple(("kafka", one.slot, one.rows) for one in before.handles if one.slot in lost)
    assert set(details["differing"]) == {("kafka", one.slot) for one in before.handles}
    assert details["offsets"] == before.offsets
    assert job.log().decision(1) == before
    # The report is right: readers see exactly those rows of the batch that the report does not list.
    records = read_committed(job.bootstrap, job.config.target)
    batches = Counter(int((record.value or b"").split()[0]) for record in records)
    assert batches[1] == sum(one.rows for one in before.handles if one.slot not in lost)
    assert max(batches) == 1
    assert job.transactions("Ongoing") == {}
