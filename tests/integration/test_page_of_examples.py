"""The commands of the page of all examples, as they are written there, one after the other. Each has to end well::

pytest -m slow -s tests/integration/test_page_of_examples.py
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable

import pytest

from page_of_examples import ROWS
from tidy.sources import ROOT

LIMIT_S = 3600.0


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("command", [command for command, _ in ROWS])
def test_a_command_ends_well(command: str, say: Callable[[str], None]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    done = subprocess.run(
        shlex.split(command), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    say(f"{command}: {done.stdout.strip().splitlines()[-1]}")
