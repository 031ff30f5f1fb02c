"""What a reader sees of a key while a killed run's batch is written again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from redis_servers import client, needs_redis, server
from small_job import SmallJob
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.state import Phase
from sparkonce.rig.servers.redis import RedisServer
from sparkonce.sinks.redis.sink import RedisSink

__all__ = ["client", "server"]

pytestmark = needs_redis

SLOTS = 2


def seen_by_a_reader(server: RedisServer, client: Any, folder: Path, guarantee: Guarantee, died_in: Phase) -> list[int]:
    """Each slot sets one key to the next version. It is read before each slot, and whenever a run has ended.

    The run that writes the second of three batches dies once.
    """
    seen: list[int] = []

    def read() -> None:
        seen.append(int(client.get("version") or 0))

    def rows(batch: int, slot: int) -> pa.RecordBatch:
        read()
        return pa.record_batch({"key": ["version"], "value": [1 + batch * SLOTS + slot]})

    job = SmallJob(folder, lambda: [RedisSink(server.url, guarantee=guarantee)], rows, slots=SLOTS)
    job.run(0)
    job.kill(1, died_in, after=read)
    job.run(1)
    job.run(2)
    read()
    return seen


def test_at_least_once_shows_older_values_again_until_the_replay_has_caught_up(
    server: RedisServer, client: Any, tmp_path: Path
) -> None:
    seen = seen_by_a_reader(server, client, tmp_path, Guarantee.AT_LEAST_ONCE, Phase.DECIDING)
    assert seen == [0, 1, 2, 3, 4, 4, 3, 4, 5, 6]
    (condition,) = RedisSink(server.url, guarantee=Guarantee.AT_LEAST_ONCE).conditions()
    assert "a replay after a failure shows older values again, until it catches up" in condition


@pytest.mark.parametrize(
    ("died_in", "wanted"),
    [(Phase.DECIDING, [0, 0, 2, 2, 2, 2, 2, 4, 4, 6]), (Phase.FINISHING, [0, 0, 2, 2, 2, 4, 4, 6])],
)
def test_exactly_once_shows_each_value_once(
    server: RedisServer, client: Any, tmp_path: Path, died_in: Phase, wanted: list[int]
) -> None:
    seen = seen_by_a_reader(server, client, tmp_path, Guarantee.EXACTLY_ONCE, died_in)
    assert seen == wanted == sorted(seen)
