from __future__ import annotations

import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Shows how much was searched, whether the test passes or not."""

    def tell(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{text}")
            sys.stdout.flush()

    return tell
