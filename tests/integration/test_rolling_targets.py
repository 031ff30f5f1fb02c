"""A running query gets another target, other sinks, or other sink settings, with and without a batch in progress."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest

from eventually import eventually
from integration.kafka_witness import Witness, until_final
from shared_servers import mariadb_server, postgres_server
from small_job import SmallJob, one_row, values_of
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.sinks.sql.postgres.connection import close_all
from sparkonce_lab.kafka import list_transactions
from sparkonce_lab.systems.mysql import MySQLSystem
from sparkonce_lab.systems.postgres import PostgresSystem

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


# --- each system -----------------------------------------------------------------------------------------------------


class Place(Protocol):
    fact: str

    def make(self, target: str) -> TwoPhaseCommitSink: ...
    def visible(self, target: str) -> Sequence[str]: ...
    def lose(self, handle: Handle) -> None: ...


class OnKafka:
    fact = "topic"

    def __init__(self, witness: Witness) -> None:
        self.witness = witness
        self.settings = {"bootstrap.servers": witness.bootstrap}
        self.topics = {name: witness.create_topic() for name in ("old", "new")}

    def make(self, target: str, **more: Any) -> KafkaSink:
        return KafkaSink(self.settings, topic=self.topics[target], **more)

    def visible(self, target: str) -> Sequence[str]:
        return self.witness.committed(self.topics[target])

    def lose(self, handle: Handle) -> None:
        with closing(KafkaCommitter(self.settings, "kafka")) as committer:
            assert until_final(committer.abort, [handle]) == [Outcome.ABORTED]

    def open(self, job: SmallJob) -> list[str]:
        names = list_transactions(self.witness.bootstrap, states=("Ongoing",))
        return [name for name in names if job.short_query in name]


class OnTables:
    """Tables in the schema or database that the system has created."""

    fact = "table"

    def __init__(self, system: PostgresSystem | MySQLSystem) -> None:
        self.system = system
        system.start(Path())
        system.place("value varchar(20)")
        self.inside = system.schema if isinstance(system, PostgresSystem) else system.database
        for target in ("old", "new"):
            system.ask(f"CREATE TABLE {self.inside}.{target} (value varchar(20))")

    def make(self, target: str) -> TwoPhaseCommitSink:
        return self.system.sink(table=target)

    def visible(self, target: str) -> Sequence[str]:
        return [value for (value,) in self.system.ask(f"SELECT value FROM {self.inside}.{target} ORDER BY 1")]  # noqa: S608

    def lose(self, handle: Handle) -> None:
        assert self.system.expire(handle)


MADE: dict[str, Callable[[Witness], Place]] = {
    "kafka": OnKafka,
    "postgres staged": lambda _: OnTables(PostgresSystem(commit="staged", server=postgres_server())),
    "mariadb staged": lambda _: OnTables(MySQLSystem(commit="staged", server=mariadb_server())),
}


@pytest.fixture(params=MADE)
def place(request, witness) -> Iterator[Place]:
    made = MADE[request.param](witness)
    yield made
    close_all()
    if isinstance(made, OnTables):
        made.system.stop()


class Query:
    def __init__(self, folder: Path, *sinks: Callable[[], TwoPhaseCommitSink]) -> None:
        self.sinks = sinks
        self.job = SmallJob(folder / "checkpoint", lambda: [make() for make in self.sinks], one_row, deadline_s=60.0)


# --- another topic, another table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "stays", "goes"),
    [
        pytest.param(Phase.FINISHING, (0, 1), (2,), id="decided"),
        pytest.param(Phase.DECIDING, (0,), (1, 2), id="undecided"),
    ],
)
def test_a_batch_is_in_the_target_of_the_run_that_decided_it(place, tmp_path, phase, stays, goes):
    query = Query(tmp_path, lambda: place.make("old"))
    query.job.run(0)
    query.job.kill(1, phase)
    query.sinks = (lambda: place.make("new"),)
    query.job.run(1, 2)
    assert (place.visible("old"), place.visible("new")) == (values_of(*stays), values_of(*goes))


def test_a_batch_that_is_lost_in_part_is_not_spread_over_two_targets(place, tmp_path):
    query = Query(tmp_path, lambda: place.make("old"))
    query.job.run(0)
    query.job.kill(1, Phase.FINISHING)
    place.lose(next(handle for handle in query.job.decision(1).handles if handle.slot == 1))
    query.sinks = (lambda: place.make("new"),)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="has lost a part of batch 1, which is decided") as refused:
            query.job.run(1)
        assert f"Start the query with {place.fact}=" in refused.value.next_step
        assert (place.visible("old"), place.visible("new")) == ([*values_of(0), "1.0"], [])
    query.sinks = (lambda: place.make("old"),)
    query.job.run(1)
    query.sinks = (lambda: place.make("new"),)
    query.job.run(2)
    assert (place.visible("old"), place.visible("new")) == (values_of(0, 1), values_of(2))


# --- sinks that come and go ------------------------------------------------------------------------------------------


@pytest.fixture
def kafka(witness) -> OnKafka:
    return OnKafka(witness)


def files_in(folder: Path) -> list[str]:
    return sorted(line.split('"')[3] for file in folder.glob("*.json") for line in file.read_text().splitlines())


@pytest.mark.parametrize(("phase", "first"), [(Phase.FINISHING, 2), (Phase.DECIDING, 1)])
def test_a_sink_that_is_added_begins_with_the_first_batch_that_is_not_decided(kafka, tmp_path, phase, first):
    query = Query(tmp_path, lambda: kafka.make("old"))
    query.job.run(0)
    query.job.kill(1, phase)
    query.sinks = (*query.sinks, lambda: FilesSink(tmp_path / "out", format="json"))
    query.job.run(1, 2)
    assert kafka.visible("old") == values_of(0, 1, 2)
    assert files_in(tmp_path / "out") == values_of(*range(first, 3))


def test_a_sink_is_removed_or_renamed_once_its_last_batch_is_committed(kafka, tmp_path):
    both = (lambda: kafka.make("old"), lambda: FilesSink(tmp_path / "out", format="json"))
    query = Query(tmp_path, *both)
    query.job.run(0)
    query.job.kill(1, Phase.FINISHING)
    for sinks in ((both[1],), (lambda: kafka.make("old", name="renamed"), both[1])):
        query.sinks = sinks
        with pytest.raises(ConfigurationError, match="holds transactions of sink 'kafka'") as refused:
            query.job.run(1)
        assert "add the sink again, under this name" in refused.value.next_step.lower()
    query.sinks = both
    query.job.run(1)
    query.sinks = (both[1],)
    query.job.run(2)
    assert kafka.visible("old") == values_of(0, 1)
    assert files_in(tmp_path / "out") == values_of(0, 1, 2)
    assert kafka.open(query.job) == []


def test_what_a_removed_sink_left_undecided_stays_open_until_it_is_given_once_more(kafka, tmp_path, caplog):
    both = (lambda: kafka.make("old", prefix="removed"), lambda: FilesSink(tmp_path / "out", format="json"))
    query = Query(tmp_path, *both)
    query.job.kill(0, Phase.DECIDING)
    query.sinks = (both[1],)
    with caplog.at_level(logging.WARNING, "sparkonce"):
        query.job.run(0)
    assert "Sink 'kafka', which this query's last run had, was removed" in caplog.text
    assert "'removed'" in caplog.text
    assert len(kafka.open(query.job)) == 2
    query.sinks = both
    query.job.run(1)
    assert kafka.open(query.job) == []
    assert kafka.visible("old") == values_of(1)
    assert files_in(tmp_path / "out") == values_of(0, 1)


# --- the guarantee, and the timeout ----------------------------------------------------------------------------------

EXACTLY, LEAST, MOST = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE


@pytest.mark.parametrize(("phase", "lower"), [(Phase.DECIDING, LEAST), (Phase.FINISHING, MOST)])
def test_a_guarantee_is_lowered_and_what_was_prepared_before_is_still_ended(kafka, tmp_path, phase, lower):
    query = Query(tmp_path, lambda: kafka.make("old"))
    query.job.run(0)
    query.job.kill(1, phase)
    assert len(kafka.open(query.job)) == 2
    query.sinks = (lambda: kafka.make("old", guarantee=lower),)
    query.job.run(1, 2)
    assert kafka.visible("old") == values_of(0, 1, 2)
    assert kafka.open(query.job) == []


def test_what_is_lost_is_not_written_again_below_exactly_once(kafka, tmp_path):
    query = Query(tmp_path, lambda: kafka.make("old"))
    query.job.kill(0, Phase.FINISHING)
    kafka.lose(query.job.decision(0).handles[1])
    query.sinks = (lambda: kafka.make("old", guarantee=LEAST),)
    with pytest.raises(ConfigurationError, match=r"is now guarantee='at-least-once', .* cannot be written again"):
        query.job.run(0)
    query.sinks = (lambda: kafka.make("old"),)
    query.job.run(0)
    query.sinks = (lambda: kafka.make("old", guarantee=LEAST),)
    query.job.run(1)
    assert kafka.visible("old") == values_of(0, 1)


def test_a_guarantee_is_raised_from_the_first_batch_that_is_not_decided(kafka, tmp_path):
    query = Query(tmp_path, lambda: kafka.make("old", guarantee=LEAST))
    query.job.run(0)
    query.job.kill(1, Phase.SWEEPING_OWN)
    query.sinks = (lambda: kafka.make("old"),)
    query.job.run(1)
    query.job.kill(2, Phase.DECIDING)
    assert len(kafka.open(query.job)) == 2
    query.job.run(2)
    assert kafka.visible("old") == values_of(0, 1, 2)
    assert kafka.open(query.job) == []


def test_a_shorter_timeout_is_that_of_new_transactions(kafka, tmp_path):
    """An open transaction keeps the timeout that its producer had, since the broker stores it."""
    query = Query(tmp_path, lambda: KafkaSink({**kafka.settings, "transaction.timeout.ms": 900_000}, topic=topic))
    topic = kafka.topics["old"]
    query.job.run(0)
    query.job.kill(1, Phase.FINISHING)
    decided = query.job.decision(1).handles
    # Wait until the shorter timeout has passed: by then, the broker has aborted the other query's transaction.
    short = kafka.witness.prepare(kafka.topics["new"], timeout_ms=1_000)
    eventually(lambda: kafka.witness.state(short.handle), until=lambda states: states == {"CompleteAbort"})
    assert kafka.witness.state(*decided) == {"Ongoing"}
    query.sinks = (lambda: KafkaSink({**kafka.settings, "transaction.timeout.ms": 1_000}, topic=topic),)
    (done,) = query.job.run(1)
    assert (done.recovered, done.healed) == (True, 0)
    assert kafka.visible("old") == values_of(0, 1)
