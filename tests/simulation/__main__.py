"""The command: runs many schedules, starting with a seed, or describes the schedule of one seed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from simulation.campaign import Count, explain, walk
from simulation.config import FAMILIES

CHUNK = 200


def main(arguments: list[str]) -> int:
    """Returns 1 if a schedule fails."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000, help="how many")
    parser.add_argument("--family", choices=FAMILIES, default="transactions", help="which sinks take part")
    parser.add_argument("--seed", type=int, default=0, help="the first one's; the others follow")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    asked = parser.parse_args(arguments)
    began, done, requests = time.monotonic(), 0, 0
    starts = range(asked.seed, asked.seed + asked.schedules, CHUNK)
    with ProcessPoolExecutor(asked.jobs) as pool:
        for count in pool.map(partial(_chunk, asked.family, asked.seed + asked.schedules), starts):
            done, requests = done + count.schedules, requests + count.requests
            if count.failed is not None:
                outcome = explain(count.failed, family=asked.family)
                sys.stdout.write("\n".join([*outcome.told, f"seed {count.failed} fails: {outcome.violation}\n"]))
                pool.shutdown(cancel_futures=True)
                return 1
    seconds = time.monotonic() - began
    sys.stdout.write(f"{done:,} schedules, {requests:,} requests, {seconds:,.0f} s: none failed\n")
    return 0


def _chunk(family: str, end: int, start: int) -> Count:
    return walk(range(start, min(start + CHUNK, end)), family=family)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
