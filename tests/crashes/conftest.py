from __future__ import annotations

from collections.abc import Iterator

import pytest

from crashes.started import StartedTargets
from zygote import Zygote


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    zygote = Zygote(tmp_path_factory.mktemp("zygote") / "log")
    yield zygote
    zygote.close()


@pytest.fixture(scope="module")
def started(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedTargets]:
    with StartedTargets(zygote, tmp_path_factory.mktemp("crashes")) as started:
        yield started
