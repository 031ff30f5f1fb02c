"""The command: many schedules, or one that is played again."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path

from simulation.campaign import Count, Failure, explain, replay, walk
from simulation.config import FAMILIES

CHUNK = 200
_SAY_EVERY_S = 10.0


def main(arguments: list[str]) -> int:
    """Returns 1 if a schedule fails."""
    asked = _arguments(arguments)
    if asked.replay is not None:
        return _replay(asked.replay)
    return _run(asked.schedules, asked.family, asked.seed, asked.jobs, asked.out)


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000, help="how many")
    parser.add_argument("--family", choices=FAMILIES, default="transactions", help="which sinks take part")
    parser.add_argument("--seed", type=int, default=0, help="the first one's; the others follow")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--out", type=Path, default=Path("simulation-failures"), help="a folder for what fails")
    parser.add_argument("--replay", type=Path, help="a file that was written for a schedule that failed")
    return parser.parse_args(arguments)


def _replay(path: Path) -> int:
    failure = Failure.of_json(json.loads(path.read_text()))
    outcome = replay(failure)
    _say("\n".join(outcome.told))
    same = outcome.violation is failure.violation and outcome.digest == failure.digest
    found = outcome.violation.value if outcome.violation is not None else "nothing is broken"
    _say(f"\n{found}; {'the same as' if same else 'NOT the same as'} in {path}")
    return 1 if outcome.violation is not None else 0


def _run(schedules: int, family: str, first: int, jobs: int, out: Path) -> int:
    began, said = time.monotonic(), time.monotonic()
    done, requests, failed = 0, 0, 0
    with ProcessPoolExecutor(jobs) as pool:
        chunks = _chunks(family, first, schedules)
        waiting = {pool.submit(_chunk, *one) for _, one in zip(range(2 * jobs), chunks, strict=False)}
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for one in finished:
                count = one.result()
                done, requests = done + count.schedules, requests + count.requests
                failed += len(count.failed)
                for seed in count.failed:
                    _say(f"seed {seed} fails; making it small")
                    failure = explain(seed, family=family)
                    _say(f"{failure.violation.value}, {failure.length} decisions: {failure.write(out)}")
                if not failed and (following := next(chunks, None)) is not None:
                    waiting.add(pool.submit(_chunk, *following))
            if time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                _say(_summary(done, requests, failed, time.monotonic() - began))
    _say(_summary(done, requests, failed, time.monotonic() - began))
    return 1 if failed else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _chunks(family: str, first: int, schedules: int) -> Iterator[tuple[str, int, int]]:
    end = first + schedules
    return ((family, start, min(start + CHUNK, end)) for start in range(first, end, CHUNK))


def _chunk(family: str, start: int, end: int) -> Count:
    return walk(range(start, end), family=family)


def _summary(done: int, requests: int, failed: int, seconds: float) -> str:
    return (
        f"{done:,} schedules, {requests:,} requests, {seconds:,.0f} s "
        f"({done / max(seconds, 0.001):,.0f} schedules/s): {failed} failed"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
