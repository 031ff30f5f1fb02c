"""A seed reproduces its schedule: in this process, in another one, and from its decisions."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from simulation import schedule
from simulation.config import FAMILIES
from simulation.dice import Dice, Given, Noted
from simulation.product import replaced

SEEDS = [(family, seed) for family, seeds in zip(FAMILIES, (30, 4, 8, 8), strict=True) for seed in range(seeds)]
TESTS = Path(__file__).parents[1]


def digest(family: str, seed: int) -> str:
    told = schedule.run(FAMILIES[family](seed), Dice(seed), tell=True).told
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def digests() -> list[str]:
    with replaced():
        return [digest(*one) for one in SEEDS]


def test_another_process_gives_the_same_trace_whatever_its_hashes_are():
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(TESTS)}
    told = "from simulation.test_replay import digests; print(*digests())"
    said = subprocess.run([sys.executable, "-c", told], env=environment, capture_output=True, text=True, check=True)
    ours = digests()
    assert said.stdout.split() == ours
    traces = {(family, one) for (family, _), one in zip(SEEDS, ours, strict=True)}
    assert len(traces) == len(SEEDS)  # adding an operator who does nothing does not change another family's schedule


def test_decisions_alone_give_the_same_schedule_with_words_or_without():
    with replaced():
        for family, seed in SEEDS:
            noted, config = Noted(seed), FAMILIES[family](seed)
            told = schedule.run(config, noted, tell=True)
            assert schedule.run(config, Given(noted.taken), tell=True) == told
            assert schedule.run(config, Dice(seed)).requests == told.requests


def test_the_command_runs_what_it_is_asked_for(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    asked = ["--schedules", "250", "--family", "transactions", "--seed", "7", "--jobs", "2"]
    said = subprocess.run(
        [sys.executable, "-m", "simulation", *asked], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("250 schedules, ")
