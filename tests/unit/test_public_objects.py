"""How public objects describe themselves, and how they are created."""

from __future__ import annotations

import pytest

from sparkonce import DeltaSink, ExactlyOnce, IcebergSink, KafkaSink, RedisSink
from sparkonce_pravega import PravegaSink
from sparkonce_rabbitmq import RabbitMQ, RabbitMQQueueSink, RabbitMQStreamSink

KAFKA = {"bootstrap.servers": "broker:9092", "sasl.password": "s3cr3t"}
RABBIT = RabbitMQ(host="rabbit-1", password=KAFKA["sasl.password"])


@pytest.mark.parametrize(
    ("one", "shown"),
    [
        (KafkaSink(KAFKA, "totals"), "KafkaSink('broker:9092', topic='totals', name='kafka')"),
        (RedisSink("redis://me:s3cr3t@cache:6379/0"), "RedisSink('cache:6379/0', structure='string', name='redis')"),
        (DeltaSink("/data/totals"), "DeltaSink(path='/data/totals', name='delta')"),
        (IcebergSink("lake.totals"), "IcebergSink(table='lake.totals', name='iceberg')"),
        (RabbitMQStreamSink(RABBIT, "orders"), "RabbitMQStreamSink('rabbit-1', stream='orders', name='rabbitmq')"),
        (
            RabbitMQQueueSink(RABBIT, "orders"),
            "RabbitMQQueueSink('rabbit-1', queue='orders', name='rabbitmq-queue')",
        ),
        (
            RabbitMQQueueSink(RABBIT, exchange="shop"),
            "RabbitMQQueueSink('rabbit-1', exchange='shop', name='rabbitmq-queue')",
        ),
        (
            PravegaSink("tcp://controller:9090", scope="shop", stream="orders"),
            "PravegaSink('tcp://controller:9090', stream='shop/orders', name='pravega')",
        ),
        (ExactlyOnce(KafkaSink(KAFKA, "t"), "/data/cp"), "ExactlyOnce(['kafka'], checkpoint='/data/cp')"),
    ],
)
def test_its_repr_names_its_target_without_secrets(one: object, shown: str) -> None:
    assert repr(one) == shown
