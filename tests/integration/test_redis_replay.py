"""Which values of a key a reader sees while a killed run's batch is written again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from redis_servers import client, server
from shared_servers import needs_redis
from small_job import SmallJob
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.state import Phase
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce_lab.rig.servers.redis import RedisServer

__all__ = ["client", "server"]

pytestmark = needs_redis

ONCE, AT_LEAST_ONCE = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE


@pytest.mark.parametrize(
    ("guarantee", "died_in", "wanted"),
    [
        (AT_LEAST_ONCE, Phase.DECIDING, [0, 1, 2, 3, 4, 4, 3, 4, 5, 6]),  # shows older values again
        (ONCE, Phase.DECIDING, [0, 0, 2, 2, 2, 2, 2, 4, 4, 6]),
        (ONCE, Phase.FINISHING, [0, 0, 2, 2, 2, 4, 4, 6]),
    ],
)
def test_a_replay_shows_older_values_only_if_it_is_at_least_once(
    server: RedisServer, client: Any, tmp_path: Path, guarantee: Guarantee, died_in: Phase, wanted: list[int]
) -> None:
    """Each of two slots sets one key to the next version. It is read before each slot, and after each run."""
    seen: list[int] = []

    def read() -> None:
        seen.append(int(client.get("version") or 0))

    def rows(batch: int, slot: int) -> pa.RecordBatch:
        read()
        return pa.record_batch({"key": ["version"], "value": [1 + batch * 2 + slot]})

    job = SmallJob(tmp_path, lambda: [RedisSink(server.url, guarantee=guarantee)], rows, slots=2)
    job.run(0)
    job.kill(1, died_in, after=read)
    job.run(1)
    job.run(2)
    read()
    assert seen == wanted
    assert (seen == sorted(seen)) == (guarantee is ONCE)
    conditions = RedisSink(server.url, guarantee=guarantee).conditions()
    assert any("older values again, until it catches up" in one for one in conditions) == (guarantee is AT_LEAST_ONCE)
