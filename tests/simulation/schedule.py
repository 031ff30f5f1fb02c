"""One schedule from its first decision to the final check of the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from simulation.config import Config
from simulation.delta import Delta
from simulation.dice import Dice
from simulation.engine import MOST_TURNS, Broken, Simulation
from simulation.files import Files
from simulation.iceberg import Iceberg
from simulation.kafka import Kafka
from simulation.mariadb import MariaDB
from simulation.model_log import ModelLog
from simulation.oracle import Oracle, Place, Violation
from simulation.postgres import Postgres
from simulation.pravega import Pravega
from simulation.product import under_way
from simulation.rabbitmq import Queue, Stream
from simulation.s3 import S3
from simulation.spark import Cluster
from simulation.systems import System
from sparkonce.errors import SparkonceError

SYSTEMS: Mapping[str, Callable[[Simulation, str], System]] = {
    "kafka-v1": Kafka,
    "kafka-v2": Kafka,
    "postgres": Postgres,
    "postgres-staged": Postgres,
    "mariadb": MariaDB,
    "files": Files,
    "s3": S3,
    "s3-gateway": S3,
    "rabbitmq-stream": Stream,
    "rabbitmq-queue": Queue,
    "pravega": Pravega,
    "delta": Delta,
    "iceberg": Iceberg,
}

_AFTERMATH_TURNS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a schedule.

    Attributes:
        violation: What happened but must never happen; None if nothing.
        requests: How often a party could have been stopped.
        told: What happened, in words; empty unless requested.
    """

    violation: Violation | None
    requests: int
    told: tuple[str, ...] = ()


def run(config: Config, dice: Dice, *, tell: bool = False) -> Outcome:
    """A schedule. Runs within `simulation.product.replaced`.

    Faults occur for a while; then every driver and task is paused, and a fresh run is left undisturbed; then the paused
    parties resume, and late requests arrive.
    """
    simulation = Simulation(config, dice, [] if tell else None)
    built = {name: SYSTEMS[name](simulation, name) for name in config.sinks}
    oracle = simulation.oracle = Oracle(simulation, {name: system.key for name, system in built.items()})
    cluster = Cluster(simulation, built, ModelLog(simulation))
    simulation.events += _events(simulation, cluster)
    with under_way(simulation):
        try:
            _play(simulation, cluster, oracle)
        except Broken:
            if oracle.violation is None:
                oracle.violation = Violation.STRANDED
        except Exception as error:  # noqa: BLE001 - no schedule may lead to any error
            simulation.say("BROKEN:", repr(error)[:300])
            oracle.violation = oracle.violation or Violation.FAILED
        finally:
            simulation.end()
    return Outcome(violation=oracle.violation, requests=simulation.requests, told=tuple(simulation.told or ()))


def _play(simulation: Simulation, cluster: Cluster, oracle: Oracle) -> None:
    cluster.start_run()
    simulation.go_on(MOST_TURNS, simulation.config.events)
    while simulation.flights and simulation.dice.pick(2):
        simulation.land(simulation.dice.pick(len(simulation.flights)))
    batches = simulation.config.batches + 1
    simulation.peace = True
    simulation.say("--- a fresh run, left in peace")
    lost = _left_in_peace(simulation, cluster, oracle, batches)
    oracle.all_done(batches, lost)
    left = [key for system in cluster.systems.values() for key in system.lingering()]
    if left and not lost:
        oracle.broken(Violation.LINGERING, left)
    if not simulation.parties and not simulation.flights:
        return
    simulation.peace = False
    simulation.say("--- the others wake up")
    simulation.hush()
    while simulation.flights:
        simulation.land(0)
    for party in simulation.parties:
        party.paused = False
    simulation.go_on(_AFTERMATH_TURNS, 0.0)
    oracle.all_done(batches, lost)


def _left_in_peace(simulation: Simulation, cluster: Cluster, oracle: Oracle, batches: int) -> frozenset[Place]:
    """A fresh run finishes every batch, or finds that rows are permanently lost."""
    try:
        cluster.run(99, batches)
    except SparkonceError as error:
        simulation.say("stops:", repr(error)[:300])
        if lost := oracle.lost_for_good(error):
            return lost
        oracle.broken(Violation.STRANDED)
    return frozenset()


def _events(simulation: Simulation, cluster: Cluster) -> list[Callable[[], Callable[[], None] | None]]:
    faults, dice = simulation.config.faults, simulation.dice

    def start() -> Callable[[], None] | None:
        if cluster.runs >= simulation.config.runs or cluster.committed + 1 >= simulation.config.batches:
            return None
        alive = any(party in simulation.parties and not party.paused for party in cluster.drivers)
        return cluster.start_run if not alive or "overlap" in faults else None

    def operate() -> Callable[[], None] | None:
        may = cluster.operators < simulation.config.operators
        return cluster.start_operator if may and simulation.oracle.has_claims else None

    def cut_power() -> Callable[[], None] | None:
        may = cluster.power_cuts < simulation.config.power_cuts and simulation.parties
        return cluster.cut_power if may else None

    def land() -> Callable[[], None] | None:
        return (lambda: simulation.land(dice.pick(len(simulation.flights)))) if simulation.flights else None

    def kill() -> Callable[[], None] | None:
        mortal = [
            party
            for party in simulation.parties
            if ("driver killed" if party in cluster.drivers else "task killed") in faults
        ]

        def strike() -> None:
            party = mortal[dice.pick(len(mortal))]
            simulation.say(party.name, "is killed")
            simulation.note("driver killed" if party in cluster.drivers else "task killed")
            simulation.kill(party)

        return strike if mortal else None

    def pause() -> Callable[[], None] | None:
        awake = [party for party in simulation.parties if not party.paused] if "paused" in faults else []

        def strike() -> None:
            party = awake[dice.pick(len(awake))]
            simulation.say(party.name, "is paused")
            party.paused = True

        return strike if awake else None

    def wake() -> Callable[[], None] | None:
        asleep = [party for party in simulation.parties if party.paused]

        def rouse() -> None:
            party = asleep[dice.pick(len(asleep))]
            simulation.say(party.name, "wakes up")
            party.paused = False

        return rouse if asleep else None

    operators, power_cuts = simulation.config.operators, simulation.config.power_cuts
    rare = [*([operate] if operators else []), *([cut_power] if power_cuts else [])]
    return [start, land, kill, pause, wake, *rare]
