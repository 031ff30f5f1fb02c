from __future__ import annotations

import pyarrow as pa

from conformance.system_suite import SystemSuite
from shared_servers import redis_cluster, redis_server
from sparkonce_lab.systems.redis import RedisSystem


class RedisSuite(SystemSuite):
    def new_system(self) -> RedisSystem:
        return RedisSystem(server=self.server or redis_server())

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        numbers = list(range(start, start + count))
        values = [f"v{number}" for number in numbers]
        return pa.record_batch({"number": numbers, "value": values, "amount": [1] * count})


class TestIncrements(RedisSuite):
    """Increments, which show whether a row was applied once or twice."""


class TestIncrementsInACluster(RedisSuite):
    def new_system(self) -> RedisSystem:
        return RedisSystem(server=redis_cluster())
