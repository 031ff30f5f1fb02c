"""Runs an example as its user does, with a desk on its way.

``python -m spark.example_child CONFIG SCRIPT ARGUMENTS…``, where CONFIG is the JSON of a `Config`. The example is as
it is: only the names ``ExactlyOnce`` and ``KafkaSink`` that it has imported get a listener and a watched sink.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spark.desk import visit

if TYPE_CHECKING:
    from sparkonce.protocol.state import Phase

PHASE = "phase"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One start of an example.

    Attributes:
        desk: The address of the test's desk.
        points: Where the sink visits it, see `spark.faults`.
        keep_batches: How many batches the log keeps.
    """

    desk: str
    points: tuple[str, ...]
    keep_batches: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main(text: str, script: str, *arguments: str) -> None:
    import typer

    from spark.faults import WatchedSink
    from sparkonce import ExactlyOnce
    from sparkonce.protocol import coordinator

    config = Config(**json.loads(text))

    def listen(phase: Phase, batch: int) -> None:
        visit(config.desk, PHASE, phase=phase.name, batch=batch)

    coordinator.KEEP_BATCHES, coordinator.TIDY_EVERY_BATCHES = config.keep_batches, 2
    sys.path.insert(0, str(Path(script).parent))
    example = importlib.import_module(Path(script).stem)
    example.ExactlyOnce = partial(ExactlyOnce, listener=listen, display=False)  # type: ignore[attr-defined]
    example.KafkaSink = partial(WatchedSink, desk=config.desk, points=config.points)  # type: ignore[attr-defined]
    sys.argv = [script, *arguments]
    typer.run(example.main)


if __name__ == "__main__":
    main(*sys.argv[1:])
