"""Runs the conformance suites, the start checks and the kills with server versions other than those of Debian 12."""

import subprocess
import sys
from pathlib import Path

import pytest

from other_servers import SERVERS

FILES = {
    "postgres": "*/test_postgres.py integration/test_postgres_*.py",
    "mariadb": "*/test_mysql.py integration/test_mysql_*.py",
    "redis": "*/test_redis.py integration/test_redis_*.py",
    "s3": "*/test_files.py */test_checkpoint_objects.py */test_storage_objects.py integration/test_s3_*.py",
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("server", [pytest.param(one, marks=pytest.mark.xdist_group(one)) for one in SERVERS])
def test_all_of_a_sink(server):
    left_out = {
        # If a test needs a feature of a later PostgreSQL, its name includes the first version with that feature.
        "postgres=12.22.0": "since_13 or since-13 or since_14 or since_15 or since-15",
        "postgres=14.20.0": "since_15 or since-15",
        # Excluded because they need Redis 7: a separate cluster bus port, revoking a subcommand from a user, and
        # checking in a script whether the user may run a command.
        "redis=6.2.5": "cluster or (script and missing_at_the_start) or finishing-lset",
        # Excluded: the files sink on other stores; users and TLS, which depend on versitygw's own options; the hidden
        # files that versitygw stores; a completion that needs no second request; and lifecycle rules, since MinIO
        # aborts every upload after a day.
        "s3=minio": "(test_files and not S3) or right or may_only_read or certificate or killed_trial or still_at_work "
        "or begins_while or refuses_once or lifecycle_rule",
    }
    # The names of these servers' targets in the crash matrix.
    targets = {"postgres": "postgres", "mariadb": "mariadb", "redis": "redis", "s3": "files-s3"}
    tests = Path(__file__).parents[1]
    kind = server.partition("=")[0]
    files = sorted(str(file) for pattern in FILES[kind].split() for file in tests.glob(pattern))
    chosen = f"(not test_matrix or ({targets[kind]} and kill-at)) and not ({left_out.get(server, 'nothing')})"
    options = ["-n0", "-q", "-m", "slow or not slow", "-k", chosen, "--server", server]
    command = [sys.executable, "-m", "pytest", *options, *files, str(tests / "crashes" / "test_matrix.py")]
    run = subprocess.run(command, cwd=tests.parent, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-20_000:]
    result = run.stdout.splitlines()[-1]
    assert "passed" in result
    assert "skipped" not in result, run.stdout[-2_000:]
