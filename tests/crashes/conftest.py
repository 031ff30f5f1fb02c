from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from crashes.job import StartedTargets
from zygote import Zygote


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> Iterator[StartedTargets]:
    folder = tmp_path_factory.mktemp("crashes")
    with closing(Zygote(folder / "zygote")) as zygote, closing(StartedTargets(zygote, folder)) as made:
        yield made
