"""A verification run that is small enough for a test, with its own Kafka, PostgreSQL and file servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparkonce_lab.checkers import judge
from sparkonce_lab.conduct import RunLimits
from sparkonce_lab.history import History
from sparkonce_lab.run import Options, run
from sparkonce_lab.systems.files import FilesSystem
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.verdicts import Anomaly, Verdict
from sparkonce_lab.workload import Workload
from startup import jvm_flags
from verifying.mutants import MUTANTS

TESTS = Path(__file__).parent.parent
HOOK = Path(__file__).parents[1] / "mutants" / "hook"

PARTITIONS = 2
LIMITS = RunLimits(start_s=300.0, recover_s=300.0, end_s=300.0)
"""Long enough for a busy machine, where a driver takes between a few seconds and a minute to start."""

Say = Callable[[str], None]


def trial(folder: Path, say: Say, **more: Any) -> tuple[History, tuple[Verdict, ...]]:
    """Runs a verification and judges it.

    Args:
        folder: A new folder.
        say: Receives progress messages.
        more: Additional fields of `Options`.
    """
    kafka = KafkaSystem(partitions=PARTITIONS)
    options = Options(
        **{
            "source": kafka,
            "systems": [kafka, PostgresSystem(), FilesSystem()],
            "folder": folder,
            "seed": 1,
            "rows": 600,
            "workload": Workload(seed=1, partitions=PARTITIONS, rows_per_second=60),
            "undisturbed": False,
            "java_flags": jvm_flags(),
            "limits": LIMITS,
            **more,
        }
    )
    history = run(options, say)
    return history, judge(history)


def broken_by(names: Sequence[str]) -> dict[str, str]:
    """The environment in which the query's processes run these mutants."""
    path = [str(HOOK), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    rules = "\n".join(MUTANTS[name].rule for name in names)
    return {"SPARKONCE_MUTANT": rules, "PYTHONPATH": os.pathsep.join(path)}


def found(verdicts: Sequence[Verdict]) -> dict[tuple[Anomaly, str], int]:
    """Counts what was found in which system, or in the whole run."""
    return {(verdict.anomaly, verdict.system): verdict.count for verdict in verdicts if verdict.count}
