"""Runs an example as its user does, with the test's gate on its way.

``python -m spark.example_child CONFIG SCRIPT ARGUMENTS…``, where CONFIG is the JSON of a `spark.pipeline.Config`. The
example is as it is: only the names ``ExactlyOnce`` and ``KafkaSink`` that it has imported get a listener and a watched
sink.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spark.pipeline import PHASE, Config

if TYPE_CHECKING:
    from sparkonce.protocol.state import Phase


def main(text: str, script: str, *arguments: str) -> None:
    import typer

    from spark.desk import visit
    from spark.faults import WatchedSink
    from sparkonce import ExactlyOnce
    from sparkonce.protocol import coordinator

    config = Config.of_json(text)

    def listen(phase: Phase, batch: int) -> None:
        visit(config.desk, PHASE, phase=phase.name, batch=batch)

    coordinator.KEEP_BATCHES, coordinator.TIDY_EVERY_BATCHES = config.keep_batches, config.tidy_every_batches
    sys.path.insert(0, str(Path(script).parent))
    example = importlib.import_module(Path(script).stem)
    example.ExactlyOnce = partial(ExactlyOnce, listener=listen, display=False)  # type: ignore[attr-defined]
    example.KafkaSink = partial(WatchedSink, desk=config.desk, points=config.points)  # type: ignore[attr-defined]
    sys.argv = [script, *arguments]
    typer.run(example.main)


if __name__ == "__main__":
    main(*sys.argv[1:])
