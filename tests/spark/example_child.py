"""Runs an example as its user does, with the test's gate on its way.

``python -m spark.example_child CONFIG SCRIPT ARGUMENTS…``, where CONFIG is the JSON of a `spark.pipeline.Config`. The
example is as it is: only the names ``ExactlyOnce`` and ``KafkaSink`` that it has imported get a listener and a gate.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark.pipeline import PHASE, Config

if TYPE_CHECKING:
    from sparkonce.protocol.state import Phase


def main(text: str, script: str, *arguments: str) -> None:
    import typer

    from spark.faults import GatedSink
    from spark.gate import arrive
    from sparkonce import ExactlyOnce, KafkaSink
    from sparkonce.protocol import coordinator

    config = Config.of_json(text)

    def listen(phase: Phase, batch: int) -> None:
        arrive(config.gate, PHASE, phase=phase.name, batch=batch)

    def gated(*given: Any, **more: Any) -> GatedSink:
        return GatedSink(KafkaSink(*given, **more), gate=config.gate, points=config.points)

    coordinator.KEEP_BATCHES, coordinator.TIDY_EVERY_BATCHES = config.keep_batches, config.tidy_every_batches
    sys.path.insert(0, str(Path(script).parent))
    example = importlib.import_module(Path(script).stem)
    example.ExactlyOnce = partial(ExactlyOnce, listener=listen, display=False)  # type: ignore[attr-defined]
    example.KafkaSink = gated  # type: ignore[attr-defined]
    sys.argv = [script, *arguments]
    typer.run(example.main)


if __name__ == "__main__":
    main(*sys.argv[1:])
