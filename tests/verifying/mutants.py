"""Broken versions of sparkonce, each with one wrong rule. The verifier has to detect the consequences.

A mutant changes the product only in the processes of the query (`mutants/hook`), and never in the verifier itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparkonce.protocol.state import Phase
from sparkonce_lab.faults import Fault
from sparkonce_lab.schedule import Step
from sparkonce_lab.verdicts import Anomaly


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A broken version of sparkonce.

    Attributes:
        rule: The wrong rule, see `mutants.rules`.
        wanted: The anomalies, at least one of which must be found.
        system: The system in which the anomaly must appear. Empty means any system.
        faults: The faults that trigger it: fault, phase, system and request.
        ends_it: True if the query cannot continue, so that its run ends early.
    """

    rule: str
    wanted: frozenset[Anomaly]
    system: str = ""
    faults: Sequence[tuple[Fault, Phase, str, str]] = ()
    ends_it: bool = False


def schedule(mutants: Iterable[Mutant]) -> list[Step]:
    """Lists the faults that trigger all of the mutants, each once."""
    faults = dict.fromkeys(fault for mutant in mutants for fault in mutant.faults)
    return [
        Step(number=number, fault=fault, phase=phase.name, system=system, request=request, batches=1)
        for number, (fault, phase, system, request) in enumerate(faults, 1)
    ]


_KILLED_DECIDING = ((Fault.DRIVER_KILLED, Phase.DECIDING, "", ""),)
_KILLED_FINISHING = ((Fault.DRIVER_KILLED, Phase.FINISHING, "", ""),)

MUTANTS: Mapping[str, Mutant] = {
    "commits-first": Mutant(
        rule="a commit before the decision",
        wanted=frozenset({Anomaly.EARLY}),
        faults=_KILLED_DECIDING,
        ends_it=True,
    ),
    "lost-passed-over": Mutant(
        rule="a loss is passed over",
        wanted=frozenset({Anomaly.MISSING}),
        faults=((Fault.EXPIRED, Phase.FINISHING, "", ""),),
    ),
    "silence-is-loss": Mutant(
        rule="Kafka: what got no answer is lost",
        wanted=frozenset({Anomaly.DOUBLED}),
        system="kafka",
        faults=((Fault.REPLY_LOST, Phase.DECIDING, "kafka", "end"),),
    ),
    "writes-again": Mutant(
        rule="a decided batch is written again",
        wanted=frozenset({Anomaly.DOUBLED}),
        faults=((Fault.DRIVER_KILLED, Phase.IDLE, "", ""),),
    ),
    "drops-a-handle": Mutant(
        rule="a handle is dropped from the decision",
        wanted=frozenset({Anomaly.MISSING}),
    ),
    "ignores-newer-claims": Mutant(
        rule="a newer claim is ignored",
        wanted=frozenset({Anomaly.DOUBLED, Anomaly.STOPPED}),
        faults=((Fault.DRIVER_PAUSED, Phase.DECIDING, "", ""),),
    ),
    "finishes-one-sink": Mutant(
        rule="one sink of a recovered batch is finished, and no server asked later",
        wanted=frozenset({Anomaly.TORN}),
        faults=_KILLED_FINISHING,
    ),
    "sweeps-nothing": Mutant(
        rule="nothing is swept",
        wanted=frozenset({Anomaly.LINGERING}),
        faults=_KILLED_DECIDING,
    ),
    "drops-rows": Mutant(
        rule="Kafka's writer leaves a row out",
        wanted=frozenset({Anomaly.MISSING}),
        system="kafka",
    ),
    "rows-twice": Mutant(
        rule="the writer of files writes a row twice",
        wanted=frozenset({Anomaly.DOUBLED}),
        system="files",
    ),
    "turns-rows-round": Mutant(
        rule="Kafka's writer turns rows round",
        wanted=frozenset({Anomaly.OUT_OF_ORDER}),
        system="kafka",
    ),
    "does-not-flush": Mutant(
        rule="Kafka's writer prepares before its rows have arrived",
        wanted=frozenset({Anomaly.MISSING, Anomaly.STOPPED}),
        ends_it=True,
    ),
    "looks-for-no-marker": Mutant(
        rule="PostgreSQL: a gid that is not there is lost, whatever its marker says",
        wanted=frozenset({Anomaly.DOUBLED}),
        system="postgres",
        faults=((Fault.REPLY_LOST, Phase.DECIDING, "postgres", "commit"),),
    ),
    "weaker-guarantee": Mutant(
        rule="Kafka's sink is at-least-once",
        wanted=frozenset({Anomaly.DOUBLED}),
        system="kafka",
        faults=_KILLED_DECIDING,
    ),
    "refuses-its-own": Mutant(
        rule="a batch that is decided already is taken for one of an old checkpoint",
        wanted=frozenset({Anomaly.STOPPED}),
        faults=_KILLED_FINISHING,
        ends_it=True,
    ),
    "asks-for-ever": Mutant(
        rule="a loss is asked for again and again",
        wanted=frozenset({Anomaly.STUCK}),
        faults=((Fault.EXPIRED, Phase.FINISHING, "", ""),),
        ends_it=True,
    ),
    "log-overwrites": Mutant(
        rule="a record takes the place of another one",
        wanted=frozenset({Anomaly.DOUBLED, Anomaly.STOPPED}),
        faults=((Fault.DRIVER_PAUSED, Phase.DECIDING, "", ""),),
        ends_it=True,
    ),
    "repeats-are-losses": Mutant(
        rule="files that are published already are taken for lost",
        wanted=frozenset({Anomaly.DOUBLED}),
        system="files",
        faults=((Fault.DRIVER_KILLED, Phase.SWEEPING_OWN, "", ""),),
    ),
    "shows-at-prepare": Mutant(
        rule="the writer of files publishes what it has prepared",
        wanted=frozenset({Anomaly.EARLY}),
        system="files",
        faults=_KILLED_DECIDING,
    ),
    "loses-signs": Mutant(
        rule="PostgreSQL's writer loses the sign of negative numbers",
        wanted=frozenset({Anomaly.UNEXPECTED}),
        system="postgres",
    ),
    "sweeps-by-committing": Mutant(
        rule="PostgreSQL: what is to be aborted is committed",
        wanted=frozenset({Anomaly.DOUBLED}),
        system="postgres",
        faults=_KILLED_DECIDING,
    ),
    "reads-at-random": Mutant(
        rule="Kafka's source leaves rows out, other ones each time",
        wanted=frozenset({Anomaly.STATE_DIFFERS}),
    ),
}

TOGETHER: Mapping[str, tuple[str, ...]] = {
    "wrong rows": ("drops-rows", "turns-rows-round", "rows-twice", "loses-signs"),
    "no answer": ("silence-is-loss", "looks-for-no-marker"),
    "killed when all is prepared": ("weaker-guarantee", "shows-at-prepare", "sweeps-by-committing"),
}
"""Mutants that one run detects together, since each shows up in a different system or as a different anomaly."""
