"""What a user asks for on the command line, checked and made into what `run` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkonce.errors import ConfigurationError
from sparkonce.verify.faults import Fault
from sparkonce.verify.history import History, Kind, load
from sparkonce.verify.run import Options
from sparkonce.verify.schedule import Step
from sparkonce.verify.systems.kafka import KafkaSystem
from sparkonce.verify.systems.names import parse
from sparkonce.verify.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The command line. See ``sparkonce verify --help``."""

    systems: Sequence[str]
    bootstrap: str | None
    kafka_settings: Mapping[str, Any]
    brokers: int
    faults: int
    wanted: Sequence[str]
    every_s: float
    rows: int
    rate: int
    seed: int
    folder: Path
    replay: Path | None


def options_of(asked: Asked) -> Options:
    """What `run` takes.

    Raises:
        ConfigurationError: naming the option that cannot be used.
    """
    folder = asked.folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"--out {asked.folder} is not an empty folder", next_step="name a new one.")
    began = _began(load(asked.replay)) if asked.replay is not None else None
    names = list(asked.systems) or (list(began["systems"]) if began else ["kafka"])
    workload = Workload.of_json(began["workload"]) if began else Workload(seed=asked.seed, rows_per_second=asked.rate)
    source = KafkaSystem(
        asked.bootstrap, settings=asked.kafka_settings, nodes=asked.brokers, partitions=workload.partitions
    )
    systems = [source if name == "kafka" else parse(name) for name in names]
    doubled = sorted({system.name for system in systems if sum(one.name == system.name for one in systems) > 1})
    if doubled:
        raise ConfigurationError(f"--system {doubled[0]} is given twice")
    return Options(
        source=source,
        systems=systems,
        folder=folder,
        seed=int(began["seed"]) if began else asked.seed,
        rows=asked.rows,
        workload=workload,
        faults=asked.faults,
        wanted=[_fault(name) for name in asked.wanted],
        every_s=asked.every_s,
        schedule=[Step.of_json(step) for step in began["schedule"]] if began else None,
    )


def _fault(name: str) -> Fault:
    try:
        return Fault(name)
    except ValueError:
        known = ", ".join(fault.value for fault in Fault)
        raise ConfigurationError(f"--fault {name}: there is no such fault", next_step=f"name one of {known}.") from None


def _began(history: History) -> Mapping[str, Any]:
    event = history.first(Kind.BEGAN)
    if event is None:
        raise ConfigurationError("the history to be replayed does not say what was asked for")
    return event.fields
