"""What a sink promises, what it checks at a start, and kills, on other servers than those that Debian 12 has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from other_servers import SERVERS

TESTS = Path(__file__).parents[1]
FILES = {
    "postgres": "*/test_postgres.py integration/test_postgres_*.py",
    "mariadb": "*/test_mysql.py integration/test_mysql_*.py",
    "redis": "*/test_redis.py integration/test_redis_*.py",
    "s3": "conformance/test_files.py conformance/test_checkpoint_objects.py integration/*_checkpoint_objects.py "
    "integration/test_s3_*.py",
}
KILLED = {"postgres": "postgres", "mariadb": "mariadb", "redis": "redis", "s3": "files-s3"}
"""The names of their targets in the crash matrix."""
WANTED = {"s3": "not test_files or S3"}
NEWEST_POSTGRES = 18


def lacking(name: str, version: str) -> list[str]:
    """What is in the names of tests that need a newer version."""
    if name != "postgres":
        return []
    return [f"since_{newer} or since-{newer}" for newer in range(int(version.split(".")[0]) + 1, NEWEST_POSTGRES + 1)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("server", [pytest.param(one, marks=pytest.mark.xdist_group(one)) for one in SERVERS])
def test_all_of_a_sink(server: str) -> None:
    name, _, version = server.partition("=")
    files = sorted(str(file) for pattern in FILES[name].split() for file in TESTS.glob(pattern))
    chosen = [f"(not test_matrix or ({KILLED[name]} and kill-at))", *([f"({WANTED[name]})"] if name in WANTED else [])]
    chosen += [f"not ({one})" for one in lacking(name, version)]
    options = ["-n0", "-q", "-m", "slow or not slow", "-k", " and ".join(chosen), "--server", server]
    command = [sys.executable, "-m", "pytest", *options, *files, str(TESTS / "crashes" / "test_matrix.py")]
    run = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-20_000:]
    assert re.search(r"\d+ passed", run.stdout)
    assert "skipped" not in run.stdout.splitlines()[-1], run.stdout[-2_000:]
