from __future__ import annotations

from pathlib import Path

import pytest

from unit.driver_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A query without Spark that has not run yet."""
    return World(tmp_path)
