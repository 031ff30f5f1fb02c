"""The former names of what `matrix`, `example_job` and `example_child` use, until they use the new ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark import faults
from spark.gate import Arrival, Gate, Hold, arrive
from spark.harness import AnyJob, Verdict
from spark.processes import Run

__all__ = ["Desk", "Hold", "Visit", "visit"]

Desk, Visit, visit = Gate, Arrival, arrive


def _same_as(name: str) -> Any:
    return property(lambda self: getattr(self, name))


def _launch(run: Run, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    run._start(command[2], command[3:], Path(environment["TMPDIR"]), environment, log)


def _watched_sink(settings: Mapping[str, Any], *, desk: str, points: Collection[str], **more: Any) -> Any:
    from sparkonce import KafkaSink

    return faults.GatedSink(KafkaSink(settings, **more), gate=desk, points=points)


Gate.visits = _same_as("arrivals")  # type: ignore[attr-defined]
Hold.caught = _same_as("arrivals")  # type: ignore[attr-defined]
Hold.give_up = Hold.cancel  # type: ignore[attr-defined]
AnyJob.desk = _same_as("gate")  # type: ignore[attr-defined]
Verdict.uncommitted_seen = _same_as("early")  # type: ignore[attr-defined]
Run._launch = _launch  # type: ignore[attr-defined]
faults.WatchedSink = _watched_sink  # type: ignore[attr-defined]
