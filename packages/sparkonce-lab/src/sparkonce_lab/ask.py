"""Validates the verifier's command line and turns it into the options of `run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sparkonce.errors import ConfigurationError
from sparkonce_lab.conduct import RunLimits
from sparkonce_lab.faults import Fault
from sparkonce_lab.history import EventKind, History, load
from sparkonce_lab.run import Options
from sparkonce_lab.schedule import Step
from sparkonce_lab.systems.base import holds_credentials, without_credentials
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.names import parse
from sparkonce_lab.systems.store import CheckpointStore
from sparkonce_lab.workload import Workload

FAULTS, ROWS, RATE, BROKERS = 12, 20_000, 1_000, 1
"""The defaults of faults, rows, rows per second and brokers."""

_BOOTSTRAP = "bootstrap.servers"
Recorded = TypeVar("Recorded", Workload, RunLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The command line; see ``sparkonce verify --help``. An option that was not given is None.

    `a_seed` is the seed to use if the command line has none.
    """

    folder: Path
    a_seed: int = 0
    systems: Sequence[str] = ()
    bootstrap: str | None = None
    kafka_settings: Mapping[str, Any] = field(default_factory=dict)
    brokers: int | None = None
    checkpoint: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    faults: int | None = None
    wanted: Sequence[str] = ()
    every_s: float | None = None
    refuse_every: int | None = None
    rows: int | None = None
    rate: int | None = None
    seed: int | None = None
    replay: Path | None = None


def options_of(asked: Asked) -> Options:
    """Converts the command line to the options of `run`. The ConfigurationError for an unusable option names it."""
    folder = asked.folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"--out {asked.folder} is not an empty folder.", next_step="Name a new one.")
    began = _replayed(asked)
    seed = _first(began.get("seed"), asked.seed, asked.a_seed)
    recorded = _recorded("workload", Workload, began)
    workload = recorded or Workload(seed=seed, rows_per_second=_first(asked.rate, RATE))
    addresses = _addresses(asked, began)
    source = _source(asked, began, workload.partitions)
    named = {name: f"{name}={address}" if address else name for name, address in addresses.items()}
    if source.refuse_every and "kafka" not in addresses:
        raise ConfigurationError(
            f"--refuse-every {source.refuse_every} is for the system kafka, which is not among the systems.",
            next_step="Add --system kafka, or leave it out.",
        )
    systems = [source if name == "kafka" else parse(text) for name, text in named.items()]
    users = {name: without_credentials(address) for name, address in addresses.items() if address}
    if source.bootstrap:
        users["kafka"] = without_credentials(source.bootstrap)
    return Options(
        source=source,
        systems=systems,
        folder=folder,
        seed=seed,
        rows=_first(began.get("rows"), asked.rows, ROWS),
        workload=workload,
        faults=_first(asked.faults, FAULTS),
        wanted=[_fault(name) for name in asked.wanted],
        every_s=_first(began.get("every_s"), asked.every_s, 0.0),
        schedule=[Step.of_json(step) for step in began["schedule"]] if "schedule" in began else None,
        limits=_recorded("limits", RunLimits, began) or RunLimits(),
        addresses=users,
        store=_store(asked, began),
    )


def _first(*values: Any) -> Any:
    """Returns the first value that is not None."""
    return next(value for value in values if value is not None)


def _replayed(asked: Asked) -> Mapping[str, Any]:
    """Returns the settings in the history to be replayed; empty if there is none."""
    if asked.replay is None:
        return {}
    changes = {
        "--seed": asked.seed,
        "--rows": asked.rows,
        "--rate": asked.rate,
        "--faults": asked.faults,
        "--fault": asked.wanted or None,
        "--every": asked.every_s,
        "--refuse-every": asked.refuse_every,
        "--brokers": asked.brokers,
    }
    refused = [name for name, value in changes.items() if value is not None]
    if refused:
        raise ConfigurationError(
            f"--replay {asked.replay} says what is done, and {' and '.join(refused)} would change it.",
            next_step=f"Leave out {' and '.join(refused)}, or --replay.",
        )
    return _began(load(asked.replay))


def _began(history: History) -> Mapping[str, Any]:
    event = history.first(EventKind.BEGAN)
    if event is None:
        raise ConfigurationError(
            "The history to be replayed does not record its options.", next_step="Give the folder of a whole run."
        )
    return event.fields


def _recorded(name: str, kind: type[Recorded], began: Mapping[str, Any]) -> Recorded | None:
    """Returns a value from the history to be replayed; None if the history does not contain it."""
    if name not in began:
        return None
    try:
        return kind(**began[name])
    except TypeError as error:
        raise ConfigurationError(
            f"The {name} of the history to be replayed cannot be read: {error}",
            next_step=f"Replay it with the version that has recorded it, {began.get('versions', {}).get('sparkonce')}.",
        ) from None


def _addresses(asked: Asked, began: Mapping[str, Any]) -> dict[str, str]:
    """Returns the address of each system by name; empty for a system that the verifier starts."""
    for text in asked.systems:
        parse(text)
    addresses: dict[str, str] = {}
    for text in asked.systems:
        name, _, address = text.partition("=")
        if name in addresses:
            raise ConfigurationError(f"--system {name} is given twice.", next_step="Leave one out.")
        addresses[name] = address.strip()
    if not began:
        return addresses or {"kafka": ""}
    if addresses and sorted(addresses) != sorted(began["systems"]):
        raise ConfigurationError(
            f"--system {' --system '.join(addresses)}: the history to be replayed has {', '.join(began['systems'])}.",
            next_step="Name the same ones, or none.",
        )
    told = began.get("places", {})
    return {name: addresses.get(name) or _told(name, told.get(name, "")) for name in began["systems"]}


def _told(name: str, address: str) -> str:
    if holds_credentials(address):
        raise ConfigurationError(
            f"The history to be replayed has --system {name}={address}, without its credentials.",
            next_step="Name all of its systems again with --system, this one with its credentials.",
        )
    return address


def _source(asked: Asked, began: Mapping[str, Any], partitions: int) -> KafkaSystem:
    """Returns the Kafka of the source, which ``--bootstrap``, ``--system kafka=…`` and ``--kafka-config`` can set."""
    address = next((text.partition("=")[2].strip() for text in asked.systems if text.startswith("kafka=")), None)
    named = {
        "--bootstrap": asked.bootstrap,
        "--system kafka": address,
        "--kafka-config": asked.kafka_settings.get(_BOOTSTRAP),
    }
    chosen = {option: value for option, value in named.items() if value}
    if len(set(chosen.values())) > 1:
        both = " and ".join(f"{option} {value}" for option, value in chosen.items())
        raise ConfigurationError(f"{both} name different brokers.", next_step="Name them once.")
    before = began.get("places", {}).get("kafka")
    bootstrap = next(iter(chosen.values()), before)
    if asked.kafka_settings and not bootstrap:
        raise ConfigurationError(
            f"--kafka-config has no {_BOOTSTRAP}, and there is no --bootstrap.",
            next_step="Name your Kafka in one of them.",
        )
    if bootstrap and asked.brokers is not None:
        raise ConfigurationError(
            f"--brokers {asked.brokers} is for a Kafka that sparkonce starts, and {bootstrap} is yours.",
            next_step="Leave one of them out.",
        )
    missing = began.get("kafka_config")
    if missing and bootstrap == before and not asked.kafka_settings:
        raise ConfigurationError(
            f"The history to be replayed reached {before} with {', '.join(missing)} in --kafka-config.",
            next_step="Give the same --kafka-config.",
        )
    nodes = _first(asked.brokers, began.get("brokers"), BROKERS)
    more = {name: value for name, value in asked.kafka_settings.items() if name != _BOOTSTRAP}
    refuse_every = _first(began.get("refuse_every"), asked.refuse_every, 0)
    return KafkaSystem(bootstrap, settings=more, nodes=nodes, partitions=partitions, refuse_every=refuse_every)


def _store(asked: Asked, began: Mapping[str, Any]) -> CheckpointStore | None:
    """Returns the store of the checkpoint; None for a local disk."""
    location = asked.checkpoint or began.get("checkpoint")
    if not location:
        if asked.conf:
            raise ConfigurationError(
                f"--conf {' and '.join(asked.conf)}: the checkpoint is on sparkonce's own disk.",
                next_step="Give its location with --checkpoint, or leave --conf out.",
            )
        return None
    missing = began.get("conf")
    if missing and not asked.conf and asked.checkpoint is None:
        raise ConfigurationError(
            f"The history to be replayed reached {location} with --conf {', '.join(missing)}.",
            next_step="Give the same --conf.",
        )
    return CheckpointStore(location, asked.conf)


def _fault(name: str) -> Fault:
    try:
        return Fault(name)
    except ValueError:
        known = ", ".join(fault.value for fault in Fault)
        raise ConfigurationError(
            f"--fault {name}: there is no such fault.", next_step=f"Name one of {known}."
        ) from None
