"""Redis with exactly the permissions in docs/redis.md: a complete job, and jobs that lack one permission."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from redis_servers import Query, witness
from shared_servers import needs_redis
from small_job import SmallJob
from sparkonce.errors import PreflightError, SparkonceError
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.state import Phase
from sparkonce.sinks.redis.committer import KEPT_BATCHES
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce_lab.rig.servers.redis import RedisServer

pytestmark = needs_redis

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "redis.md").read_text()
RIGHTS = PAGE.partition("\n### Rights\n")[2].partition("\n## ")[0].replace("\\|", "|")
(LINE,) = (line for line in RIGHTS.splitlines() if line.startswith("ACL SETUSER"))
COMMANDS = re.findall(r"\+([a-z|]+)", LINE)

Row = dict[str, Any]
WRITING: dict[str, tuple[dict[str, Any], Row]] = {
    "mset": ({}, {"value": "a"}),
    "del": ({}, {"value": None}),
    "setex": ({"ttl_s": 1000}, {"value": "a"}),
    "sadd": ({"structure": "set"}, {"member": "a"}),
    "zadd": ({"structure": "sorted_set"}, {"member": "a", "score": 1.5}),
    "zrem": ({"structure": "sorted_set"}, {"member": "a", "score": None}),
    "incrby": ({"structure": "increment"}, {"amount": 1}),
    "incrbyfloat": ({"structure": "increment"}, {"amount": 0.5}),
    "hincrbyfloat": ({"structure": "increment", "field": "f"}, {"f": "a", "amount": 0.5}),
    "zincrby": ({"structure": "increment", "member": "m"}, {"m": "a", "amount": 1}),
    "expire": ({"structure": "set", "ttl_s": 1000}, {"member": "a"}),
}
"""For each command that the page lists for rows, a sink and a row that need it."""
TYPES = {"value": pa.string(), "score": pa.float64()}


def named(command: str) -> str:
    """The pattern of a message that names it: Redis' own message, or the sink's."""
    return rf"'{re.escape(command)}'|\b{command.upper()} does not work"


class Job:
    """A query whose user has the permissions that the page lists, including the commands for rows.

    Args:
        server: The shared server.
        folder: The parent of the checkpoint.
        row: The fields of each row besides its key. The keys repeat in each batch.
        settings: Settings of the sink.
    """

    def __init__(self, server: RedisServer, folder: Path, row: Row, **settings: Any) -> None:
        self.server = server
        self._client = witness(server)
        self._client.execute_command("ACL DELUSER spark")
        self.allow(*LINE.replace(">password", ">secret").split()[3:], *(f"+{name}" for name in WRITING))
        url = f"redis://spark:secret@{server.address}/0"
        self.job = self._job(folder / "least", row, "user", url=url, **settings)
        self.other = self._job(folder / "all", row, "other", url=server.url, **settings)

    def _job(self, folder: Path, row: Row, begin: str, **settings: Any) -> SmallJob:
        def rows(_: int, slot: int) -> pa.RecordBatch:
            columns = {name: pa.array([value], TYPES.get(name)) for name, value in row.items()}
            return pa.record_batch({"n": [slot], **columns})

        return SmallJob(
            folder, lambda: [RedisSink(key_template=f"{begin}:{{n}}", prefix=begin, **settings)], rows, deadline_s=0.3
        )

    def allow(self, *rules: str) -> None:
        self._client.execute_command("ACL SETUSER spark", *rules)

    def is_as_if_never_refused(self, *batches: int) -> bool:
        self.other.run(*batches)
        seen = {begin: self._content(begin) for begin in ("user", "other")}
        return seen["user"] == seen["other"]

    def _content(self, begin: str) -> dict[bytes, Any]:
        keys = sorted(self._client.scan_iter(f"{begin}:*"))
        content = {key.rpartition(b":")[2]: (self._client.dump(key), self._client.ttl(key) > 0) for key in keys}
        return {**content, b"staged": len([*self._client.scan_iter(f"sparkonce:*{begin}.*.*:{begin}.*")])}

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def new_job(server, client, tmp_path) -> Iterator[Callable[..., Job]]:
    client.config_set("appendfsync", "no")  # no server is killed here
    jobs: list[Job] = []

    def new(row: Row, **settings: Any) -> Job:
        jobs.append(Job(server, tmp_path, row, **settings))
        return jobs[-1]

    yield new
    for job in jobs:
        job.close()


def test_every_command_of_the_page_is_tried_here():
    elsewhere = {"cluster|slots", "asking", "wait", "select", "config|get"}
    tables = set(re.findall(r"\+([a-z|]+)", RIGHTS)) - set(COMMANDS)
    assert tables == set(WRITING) | elsewhere
    assert len(COMMANDS) == len(set(COMMANDS)) > 20


@pytest.mark.parametrize("command", WRITING)
def test_the_rights_in_the_docs_are_enough(new_job, command):
    """Runs a query that writes, is killed before and after a decision, sweeps, and commits."""
    settings, row = WRITING[command]
    job = new_job(row, **settings)
    job.job.live()
    assert job.is_as_if_never_refused(0, 1, 2, 3)


def test_every_command_in_the_docs_is_used(server, client, new_job):
    """According to the server's own statistics, of everything after the checks at the start."""
    # The server's identity is only checked at the start.
    at_start = {"get", "set"}
    new_job({"amount": 1}, structure="increment")
    query = Query(RedisSink(f"redis://spark:secret@{server.address}/0", structure="increment", key_template="user:{n}"))
    client.config_resetstat()
    client.script_flush()
    rows = pa.record_batch({"n": [1, 2], "amount": [1, 1]})
    client.set("user:2", "no number")
    handle = query.prepare(rows)
    assert query.commit(handle) == [Outcome.UNKNOWN]  # having applied the first row
    client.set("user:2", "0")
    assert query.commit(handle) == [Outcome.COMMITTED]
    query.open(rows, batch=1)
    (left,) = query.committer.list_lingering([query.owner])
    assert [answer.outcome for answer in query.committer.abort([left])] == [Outcome.ABORTED]
    query.committer.conclude(KEPT_BATCHES + 2, [handle])
    query.close()
    assert (client.get("user:1"), client.get("user:2")) == (b"1", b"1")
    used = {name.removeprefix("cmdstat_").partition("|")[0] for name in client.info("commandstats")}
    assert {command.partition("|")[0] for command in COMMANDS} - used <= at_start


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_missing_at_the_start(client, new_job, command):
    job = new_job({"amount": 1}, structure="increment")
    job.allow(f"-{command}")
    with pytest.raises(PreflightError, match=named(command)) as raised:
        job.job.run(0)
    assert "secret" not in str(raised.value)
    left = {*client.scan_iter()}
    assert left <= {b"sparkonce:id"} or (command == "unlink" and all(0 < client.ttl(key) <= 60 for key in left))
    job.allow(f"+{command}")
    job.job.run(0)
    assert {*client.mget("user:0", "user:1")} == {b"1"}


@pytest.mark.parametrize(
    ("phase", "command"), [(Phase.WRITING, "rpush"), (Phase.FINISHING, "evalsha"), (Phase.FINISHING, "lset")]
)
def test_a_command_that_goes_while_the_query_runs(new_job, phase, command):
    """The batch stops, and the next start names the command. Increments would show rows that were applied twice."""
    job = new_job({"amount": 1}, structure="increment")
    job.job.run(0)
    with pytest.raises(SparkonceError, match=r"has no permissions to run|can't run this command"):
        job.job.run(1, listener=lambda entered, _: job.allow(f"-{command}") if entered is phase else None)
    with pytest.raises(PreflightError, match=named(command)):
        job.job.run(1)
    job.allow(f"+{command}")
    job.job.run(1, 2)
    assert job.is_as_if_never_refused(0, 1, 2)


@pytest.mark.parametrize("right", ["mset", "expire", "zincrby", "~user:*"])
def test_a_right_on_rows_that_goes(new_job, right):
    """This cannot be checked without writing a row. Each commit attempt fails with an error that names it."""
    settings, row = WRITING.get(right, WRITING["incrby"])
    job = new_job(row, **settings)
    job.job.run(0)
    take, give = (["resetkeys", "~sparkonce:*"], [right]) if right == "~user:*" else ([f"-{right}"], [f"+{right}"])
    job.allow(*take)
    named = "INCRBY, key 'user:0'.*permission|INCRBY, key 'user:0'.*can't access"
    words = named if right == "~user:*" else rf"{right.upper()}, key 'user:0'.*(permission|can't run)"
    for _ in range(2):
        with pytest.raises(SparkonceError, match=words):
            job.job.run(1)
    job.allow(*give)
    job.job.run(1, 2)
    assert job.is_as_if_never_refused(0, 1, 2)


# --- rights that are needed only in some cases ------------------------------------------------------------------------


def test_another_database(server, new_job):
    job = new_job({"amount": 1})
    sink = RedisSink(f"redis://spark:secret@{server.address}/1")
    with pytest.raises(PreflightError, match=r"NOPERM.*\bselect\b"):
        sink.preflight("0123456789ab", None)
    job.allow("+select")
    sink.preflight("0123456789ab", None)


def test_appendfsync_that_may_not_be_read(new_job, caplog):
    job = new_job({"amount": 1}, structure="increment")
    job.job.run(0)
    assert "CONFIG is not allowed" in caplog.text
    caplog.clear()
    job.allow("+config|get")
    job.job.run(1)
    assert "CONFIG" not in caplog.text


@pytest.mark.parametrize("command", ["cluster|slots", "asking", "lset"])
def test_a_command_that_is_missing_in_a_cluster(cluster, command):
    def allow(*rules: str) -> None:
        for node in cluster.nodes:
            assert node.ask("ACL", "SETUSER", "spark", *rules) == "+OK"

    allow("reset", *LINE.replace(">password", ">secret").split()[3:], "+cluster|slots", "+asking", f"-{command}")
    sink = RedisSink(cluster.url.replace("redis://", "redis://spark:secret@"), cluster=True)
    with pytest.raises(PreflightError, match=named(command)):
        sink.preflight("0123456789ab", None)
    allow(f"+{command}")
    sink.preflight("0123456789ab", None)
