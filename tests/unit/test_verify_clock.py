"""A process whose wall clock jumps, while its other clocks continue normally."""

import os
import subprocess
import sys

import pytest

from sparkonce_lab.clock import FakeClock, find_faketime

_PROGRAM = """
import sys, threading, time
from sparkonce_lab.clock import adapt_python

adapt_python()
wall, steady = time.time(), time.monotonic()
print("ready", flush=True)
sys.stdin.readline()
give_up_at = steady + 60
while abs(time.time() - wall) < 1_000 and time.monotonic() < give_up_at:
    time.sleep(0.05)
    threading.Event().wait(0.05)
print(round((time.time() - wall - (time.monotonic() - steady)) / 100), time.monotonic() < give_up_at)
"""


@pytest.mark.parametrize("seconds", [3_600, -3_600])
def test_the_wall_clock_jumps_and_a_process_sleeps_and_waits_as_before(tmp_path, seconds):
    library = find_faketime()
    if library is None:
        pytest.skip("libfaketime is not installed")
    clock = FakeClock(library, tmp_path / "clock")
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, **clock.env()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdin is not None
        assert child.stdout.readline() == "ready\n"
        clock.jump(seconds)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == f"{seconds // 100} True\n"
        assert child.wait(timeout=60) == 0
    finally:
        child.kill()
        child.communicate()
