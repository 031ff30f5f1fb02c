"""What a query on RabbitMQ queues passes to Spark."""

from __future__ import annotations

from pathlib import Path

from pyspark import cloudpickle

from sparkonce.storage.local import LocalFiles
from sparkonce_rabbitmq.queue.consumer import ConsumerSettings
from sparkonce_rabbitmq.queue.data_source import QueueOptions, source_of
from sparkonce_rabbitmq.queue.receiver import ReceiverSettings
from sparkonce_rabbitmq.server import RabbitMQ


def test_the_password_goes_to_the_process_that_plans_and_to_no_task(tmp_path: Path) -> None:
    server = RabbitMQ(password="s3cret-word")  # noqa: S106 - not a real password
    consumer = ConsumerSettings(server=server, queue="q", prefetch=9, exclusive=True, patience_s=30.0)
    files = LocalFiles(tmp_path)
    options = QueueOptions(files=files, consumer=consumer, receiver=ReceiverSettings(), most=None, partitions=2)
    registered = source_of(options)
    planning = cloudpickle.loads(cloudpickle.dumps(registered))({})
    reader = planning.streamReader(None)
    assert reader._options.consumer == consumer
    for_tasks = cloudpickle.dumps((planning, reader))
    assert b"s3cret-word" not in for_tasks
    _, copy = cloudpickle.loads(for_tasks)
    assert copy._options.segments().files.location == options.segments().files.location
