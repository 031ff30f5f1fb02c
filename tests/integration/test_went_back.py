"""A server or folder that was restored from an older state while a query writes to it.

Rows that readers saw are gone, and neither Spark nor the log would notice. The query stops, and names the batches.
"""

from __future__ import annotations

import logging
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from integration.own_servers import ROWS, SLOTS, numbers, on, once_at
from integration.own_servers import suite as suite
from small_job import SmallJob
from sparkonce.errors import ConfigurationError, StaleServerError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.state import Phase


def copy(source: Path, target: Path) -> None:
    """Replaces the target's content with the source's, including owners and links."""
    target.mkdir(exist_ok=True)
    subprocess.run(["find", str(target), "-mindepth", "1", "-delete"], check=True)
    subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)


def save(suite: Any, to: Path) -> None:
    _copy_data(suite, lambda data: copy(data, to))


def put_back(suite: Any, saved: Path) -> None:
    _copy_data(suite, lambda data: copy(saved, data))


def _copy_data(suite: Any, act: Callable[[Path], None]) -> None:
    if suite.server is None:
        act(suite.system.folder)
        return
    suite.system.close()
    suite.server.stop()
    act(suite.server.folder)
    suite.server.start()


def job_into(suite: Any, **sink: Any) -> SmallJob:
    def rows(batch: int, slot: int) -> pa.RecordBatch:
        made: pa.RecordBatch = suite.make_rows((batch * SLOTS + slot) * ROWS, ROWS)
        return made

    return SmallJob(suite.folder / "checkpoint", lambda: [suite.make(**sink)], rows, slots=SLOTS, deadline_s=60.0)


@on("postgres-two_phase", "mariadb-staged", "redis", "files", slow=["postgres-staged", "mariadb-two_phase", "rabbitmq"])
def test_a_start_finds_what_is_missing_and_goes_on_when_it_is_told_to(suite: Any, tmp_path: Path) -> None:
    job, saved, name = job_into(suite), tmp_path / "saved", suite.make().name
    job.run(0)
    save(suite, saved)
    job.run(1, 2)
    put_back(suite, saved)
    for accepted in ({}, {name: 1}):  # the batch up to which losses are accepted for a sink
        job.accept_lost = accepted
        with pytest.raises(StaleServerError) as caught:
            job.run(3)
        missing = [batch for batch in (1, 2) if batch > accepted.get(name, -1)]
        assert caught.value.details["missing"] == {name: missing}
        assert f"accept_lost_batches={ {name: 2} }" in caught.value.next_step
        assert Counter(suite.visible()) == numbers(0)
    job.accept_lost = {name: 3}
    with pytest.raises(ConfigurationError, match="batch 3 is next"):
        job.run(3)
    job.accept_lost = {name: 2}
    job.run(3, 4)
    job.accept_lost = {}
    job.run(5)
    assert Counter(suite.visible()) == numbers(0, 3, 4, 5)


@on("postgres-two_phase", "files", slow=["mariadb-staged", "redis"])
def test_a_commit_alone_that_is_missing_is_made_again(
    suite: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, saved = job_into(suite), tmp_path / "saved"
    job.run(0)
    job.run(1, listener=once_at(Phase.FINISHING, 1, lambda: save(suite, saved)))
    put_back(suite, saved)
    assert Counter(suite.visible()) == numbers(0)
    with caplog.at_level(logging.WARNING, "sparkonce"):
        job.run(2)
    assert "has committed it again" in caplog.text
    assert Counter(suite.visible()) == numbers(0, 1, 2)


@on("postgres-staged", slow=["mariadb-two_phase"])
def test_a_server_that_goes_back_under_a_run_stops_it(suite: Any, tmp_path: Path) -> None:
    job, saved, name = job_into(suite), tmp_path / "saved", suite.make().name
    job.run(0)
    save(suite, saved)
    with pytest.raises(StaleServerError) as caught:
        job.run(1, 2, 3, listener=once_at(Phase.WRITING, 3, lambda: put_back(suite, saved)))
    assert caught.value.details["missing"] == {name: [2]}
    with pytest.raises(StaleServerError) as caught:
        job.run(3)
    assert caught.value.details["missing"] == {name: [1, 2]}
    job.accept_lost = {name: 2}
    job.run(3, 4)
    assert Counter(suite.visible()) == numbers(0, 3, 4)


@on("files", slow=["postgres-two_phase"])
def test_what_changed_with_the_sink_itself_stops_nothing(suite: Any, tmp_path: Path) -> None:
    """For example a lower guarantee for a while, or restoring the log and the server together."""
    job, saved = job_into(suite), tmp_path / "saved"
    job.run(0, 1)
    save(suite, saved)
    copy(job.checkpoint, tmp_path / "log")

    def make(**sink: Any) -> None:
        job._make_sinks = lambda: [suite.make(**sink)]

    job.run(2)
    make(guarantee=Guarantee.AT_LEAST_ONCE)
    job.run(3)
    make()
    job.run(4)
    job.run(5)
    assert Counter(suite.visible()) == numbers(0, 1, 2, 3, 4, 5)
    put_back(suite, saved)
    copy(tmp_path / "log", job.checkpoint)
    job.run(2, 3)
    assert Counter(suite.visible()) == numbers(0, 1, 2, 3)


@on("files")
def test_manifests_that_were_not_written_are_not_missed(suite: Any) -> None:
    plain, listed = job_into(suite, manifest=False), job_into(suite)
    listed.query = plain.query
    plain.run(0, 1)
    listed.run(2)
    listed.run(3)
    assert Counter(suite.visible()) == numbers(0, 1, 2, 3)


@on("redis")
def test_a_ledger_that_may_have_expired_is_not_missed(suite: Any) -> None:
    """A ledger may have expired after half its time to live, and after less if an earlier run gave it less."""
    short, long = job_into(suite, staging_ttl_s=1, ledger_ttl_s=2), job_into(suite)
    long.query = short.query
    short.run(0, 1)
    (client,) = suite.system.clients
    (ledger,) = client.scan_iter("sparkonce:*", _type="hash")
    client.delete(ledger)  # as its expiry would
    long.run(2)
    client.delete(ledger)
    with pytest.raises(StaleServerError):
        long.run(3)
