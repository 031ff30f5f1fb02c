"""Objects that a worker hides from the garbage collector, and runs that close before their process ends."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from sparkonce.spark import python_worker
from sparkonce.spark.python_worker import lighten_worker


@pytest.fixture
def _thawed(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(python_worker, "_frozen", 0)
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_thawed")
def test_what_a_later_task_imports_is_hidden_too(monkeypatch):
    """As Spark itself does: it imports pandas after the first task's function has returned."""

    def is_hidden(thing: object) -> bool:
        return not any(each is thing for each in gc.get_objects())

    first = [["first"]]
    assert not is_hidden(first)
    lighten_worker()
    assert is_hidden(first)
    later = [["later"]]
    monkeypatch.setitem(sys.modules, "imported_by_a_later_task", ModuleType("imported_by_a_later_task"))
    lighten_worker()
    assert is_hidden(later)
    of_a_task = [["of a task"]]
    lighten_worker()
    assert not is_hidden(of_a_task)


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
def test_a_run_that_has_ended_closes_before_the_process_ends(*, is_active, said):
    done = subprocess.run(
        [sys.executable, "-c", LATE.format(is_active=is_active)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert (done.stdout, done.stderr) == (said, "")
