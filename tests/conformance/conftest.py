from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from conformance.forked import commit_in_a_fork
from sparkonce.testing import scene
from zygote import Zygote


@pytest.fixture(scope="session")
def zygote(tmp_path_factory) -> Iterator[Zygote]:
    opened = Zygote(tmp_path_factory.mktemp("zygote") / "log")
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def elsewhere(request, monkeypatch) -> None:
    """A check's other process is a fork, except in test_folder.py, which starts the same process as for users."""
    if request.node.name == "test_another_process_commits" and request.path.name != "test_folder.py":
        forked = partial(commit_in_a_fork, request.getfixturevalue("zygote"))
        monkeypatch.setattr(scene, "commit_elsewhere", forked)


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    from jvm import bare_jvm

    with bare_jvm() as started:
        yield started
