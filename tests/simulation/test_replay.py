"""A seed gives the same schedule again: in this process, in another one, and from its decisions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from simulation import schedule
from simulation.campaign import explain, walk
from simulation.dice import Dice, Given
from simulation.mutants import MUTANTS
from simulation.product import replaced
from simulation.schedule import noted

SEEDS = [
    (family, seed)
    for family, seeds in (("transactions", 30), ("staged", 4), ("letters", 4), ("reading", 4))
    for seed in range(seeds)
]
_TELL = """
from simulation.test_replay import digests
print(*digests())
"""


def digests() -> list[str]:
    with replaced():
        return [noted(seed, family)[0].digest for family, seed in SEEDS]


def test_a_seed_gives_the_same_trace_again() -> None:
    first = digests()
    walk(range(1_000, 1_020))
    assert digests() == first
    assert len(set(first)) == len(first)


def test_another_process_gives_the_same_trace_whatever_its_hashes_are() -> None:
    mine = os.environ.get("PYTHONHASHSEED", "")
    hashes = "1" if mine != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": str(Path(__file__).parents[1])}
    said = subprocess.run([sys.executable, "-c", _TELL], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == digests()


def test_decisions_alone_give_the_same_trace() -> None:
    with replaced():
        for family, seed in SEEDS:
            outcome, config, decisions = noted(seed, family)
            assert schedule.run(config, Given(decisions), tell=True).digest == outcome.digest


def test_without_words_a_schedule_is_the_same() -> None:
    with replaced():
        for family, seed in SEEDS:
            told, config, _ = noted(seed, family)
            assert schedule.run(config, Dice(seed)).requests == told.requests


def test_the_command_plays_a_file_again(tmp_path: Path) -> None:
    mutant = MUTANTS[0]
    failure = explain(walk(range(1_000), mutant).failed[0], mutant, most_tries=20)
    path = failure.write(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    said = subprocess.run(
        [sys.executable, "-m", "simulation", "--replay", str(path)], env=environment, capture_output=True, text=True
    )
    assert said.returncode == 1
    assert f"{failure.violation.value}; the same as in" in said.stdout


def test_the_command_runs_what_it_is_asked_for(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    asked = ["--schedules", "250", "--family", "transactions", "--seed", "7", "--jobs", "2"]
    said = subprocess.run(
        [sys.executable, "-m", "simulation", *asked], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.splitlines()[-1].startswith("250 schedules, ")
