"""The Redis sink in a real query that counts: its driver is killed, and the server is asked what it has counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redis_servers import client, needs_redis, own, server
from spark.faults import HALFWAY, Watched
from spark.harness import Job
from spark.pipeline import PHASE
from sparkonce.embedded import Cluster
from sparkonce.protocol.state import Phase
from sparkonce.sinks.redis.names import COMMITS_FIELD, Entry
from sparkonce.testing.servers.redis import RedisServer

if TYPE_CHECKING:
    from spark.pipeline import Config
    from sparkonce import KafkaSink
    from sparkonce.spark.views import Sinks

__all__ = ["client", "server"]

pytestmark = [pytest.mark.kafka, pytest.mark.spark, needs_redis]

SLOTS, BATCH, BATCHES = 4, 1_000, 3
KILLS: tuple[tuple[str, dict[str, str], int], ...] = (
    (PHASE, {"phase": Phase.DECIDING.name}, 0),
    (HALFWAY, {}, BATCH // 2),
)
"""Where, and how many rows of its batch are then counted: all is prepared; two of four slots are committed."""


def sinks(config: Config, _: KafkaSink) -> Sinks:
    """Counts the ids by their last two digits."""
    from sparkonce import RedisSink

    sink = RedisSink(config.beside["redis"], structure="increment", key_template="count:{ending}")
    watched = Watched(sink, desk=config.desk, points=config.points)
    return {watched: lambda df: df.selectExpr("substr(key, -2) as ending", "1 as amount")}


def counted(client: Any) -> Counter[str]:
    """What stands in the server."""
    keys = [key for key in client.scan_iter(count=1_000) if not own(key)]
    return Counter({key.decode(): int(client.get(key)) for key in keys})


def test_increments_of_a_driver_that_is_killed_are_counted_once(
    kafka: Cluster, server: RedisServer, client: Any, tmp_path: Path
) -> None:
    with Job(
        kafka.bootstrap,
        tmp_path / "job",
        rows=BATCH * BATCHES,
        again=False,
        rows_per_batch=BATCH,
        slots=SLOTS,
        plan="spark.plans:stateless",
        points=(HALFWAY,),
        unit=f"{__name__}:{sinks.__name__}",
        beside={"redis": server.url},
    ) as job:
        for batch, (point, told, shown) in enumerate(KILLS):
            hold = job.desk.hold(point, when=lambda _, due=batch: job.phase().told["batch"] == due, **told)
            run = job.start()
            hold.wait(run.check)
            before = counted(client)
            run.kill()
            assert counted(client) == before
            assert before.total() == BATCH * batch + shown
        job.start().finish()
        assert counted(client) == Counter(f"count:{each[-2:]}" for each in job.ids)
        (ledger,) = {key for key in client.scan_iter() if own(key)} - {b"sparkonce:id"}
        entries = client.hgetall(ledger)
        assert int(entries.pop(COMMITS_FIELD.encode())) == SLOTS * BATCHES
        states = Counter(Entry.parse(entry.decode()).state for entry in entries.values())
        assert states == {"D": SLOTS * BATCHES, "A": SLOTS}
