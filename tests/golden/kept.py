"""The golden files: what earlier versions have written, and every later one must read.

A folder for each version of the formats. Those of a version that was released are never changed: what has written them
is at work somewhere. Who changes a format on purpose keeps them, lets `golden.make` write a new folder beside them, and
adds its name to `VERSIONS`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkonce.protocol.view import LogView, Run

HERE = Path(__file__).parent
VERSIONS = ("v1",)
NEWEST = VERSIONS[-1]
"""The version that today's code writes."""
RELEASES = {"0.1": ("v1", "compacted", "queue/v1", "kinds/v1")}
"""The folders with what each minor version writes. A release needs its own: see `releasing.check`."""

UNDECIDED, DECIDED, FINISHED = STATES = ("undecided", "decided", "finished")
EMPTY = "empty-folders"
"""A list: Git keeps no empty folder."""

QUERY = "60a1de00-0000-4000-8000-000000000001"
SHORT = "60a1de000000"
KILLED = 3
"""The batch that is undecided in one state, decided in the next, and later amended."""

CHANGED = (
    "this version writes it in another form than the golden files of {version}. If that is wanted: leave the files in "
    "tests/golden/{version} as they are, see that they are still read, write a new folder by golden.make, and add it "
    "to VERSIONS in tests/golden/kept.py"
)


def state(version: str, name: str) -> Path:
    """The folder of a state."""
    return HERE / version / name


def copy(version: str, name: str, to: Path) -> Path:
    """A state that may be worked on."""
    made = to / name
    shutil.copytree(state(version, name), made)
    _make_empty(version, name, made)
    return made


def copy_checkpoint(version: str, name: str, to: Path) -> Path:
    """Only a state's log and what is Spark's own."""
    ignored = shutil.ignore_patterns("sparkonce-write-ahead", "files")
    shutil.copytree(state(version, name), to / name, ignore=ignored)
    _make_empty(version, name, to / name)
    return to / name / "checkpoint"


def _make_empty(version: str, name: str, made: Path) -> None:
    for folder in (state(version, name) / EMPTY).read_text().split():
        (made / folder).mkdir(parents=True, exist_ok=True)


def servers(version: str, name: str) -> Any:
    """Reads what the servers held in a state, see `golden.said`."""
    return json.loads((state(version, name) / "servers.json").read_text())


def plain(view: LogView) -> dict[str, Any]:
    """A log as plain values: ends, runs and decisions, and of the newest what it says of each sink."""
    newest = view.newest_decision
    run = view.newest_run
    assert newest is not None
    assert run is not None
    handles: dict[str, list[dict[str, Any]]] = {}
    for one in newest.handles:
        told = asdict(one) | {"transaction": dict(one.transaction)}
        handles.setdefault(told.pop("sink"), []).append(told)
    return {
        "floor": {"position": view.floor.position, "runs": [_run(one) for one in view.floor.runs]},
        "end": view.end,
        "runs": [_run(one) for one in view.runs],
        "claims_in_a_row": view.claims_in_a_row,
        "decisions": [
            {
                "position": one.position,
                "token": [one.token.position, one.token.nonce],
                "query": one.query,
                "batch": one.batch,
                "offsets": list(one.offsets),
                "handles": len(one.handles),
            }
            for one in view.decisions
        ],
        "newest facts": {name: dict(facts) for name, facts in run.sinks},
        "newest handles": handles,
    }


def _run(run: Run) -> dict[str, Any]:
    token = [run.token.position, run.token.nonce]
    return {"token": token, "query": run.query, "location": run.location, "sinks": [name for name, _ in run.sinks]}
