"""A process that ends lets the runs of ended queries close, with the thread pools that their committers need."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATE = """
import threading
from concurrent.futures import ThreadPoolExecutor
from sparkonce.spark import query_end

asked = threading.Event()

class Query:
    @property
    def isActive(self):
        asked.set()  # the process ends
        return {is_active}

def close():
    asked.wait()
    with ThreadPoolExecutor(2) as pool:
        print("closed", sum(pool.map(abs, (-1, -2))), flush=True)

if not {is_active}:
    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    query_end._ends["run"] = Query(), thread
else:
    query_end._ends["run"] = Query(), None
"""


@pytest.mark.parametrize(("is_active", "said"), [(False, "closed 3\n"), (True, "")])
def test_a_run_that_has_ended_closes_before_the_process_ends(*, is_active: bool, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE.format(is_active=is_active)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert (done.stdout, done.stderr) == (said, "")
