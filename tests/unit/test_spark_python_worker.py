"""A worker hides the modules that its tasks have imported from the garbage collector."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from sparkonce.spark import python_worker
from sparkonce.spark.python_worker import lighten_worker


@pytest.fixture
def _thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(python_worker, "_frozen", 0)
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_thawed")
def test_what_a_later_task_imports_is_hidden_too(monkeypatch: pytest.MonkeyPatch) -> None:
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
