"""Measures a RabbitMQ queue's source and sink, compared with simple at-least-once loops over pika's blocking client.

    python3 dev.py run python benchmarks/rabbitmq_queue.py [--rows 50000] [--size 100] [--rounds 4]

The reading loop consumes with the same prefetch, appends bodies to an fsynced file, and acknowledges 1,000 messages at
a time. The receiver is measured without Spark, until all messages are stored durably. The publishing loop waits for the
confirm of each message before it sends the next one. All variants take turns in every round. The result is the median
over the rounds, without the first one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pika
import pyarrow as pa

from sparkonce.storage.local import LocalFiles
from sparkonce.write_ahead import ApplyToken
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer
from sparkonce_rabbitmq import RabbitMQ
from sparkonce_rabbitmq.queue.consumer import ConsumerSettings, QueueConsumer
from sparkonce_rabbitmq.queue.progress import Progress
from sparkonce_rabbitmq.queue.receiver import Receiver, ReceiverSettings
from sparkonce_rabbitmq.queue.segments import Segments
from sparkonce_rabbitmq.sinks.queue_publisher import QueuePublish

QUEUE = "measured"
PREFETCH = 20_000
AT_ONCE = 1000


class Measured:
    """A server with one queue, and the ways to read from and write to it.

    Args:
        server: The server.
        folder: A new folder.
        rows: The number of messages.
        size: The size of a body, in bytes.
    """

    def __init__(self, server: RabbitServer, folder: Path, rows: int, size: int) -> None:
        self.settings = RabbitMQ(host=HOST, port=server.port)
        self.url = pika.URLParameters(server.url)
        self.folder, self.rows, self.body = folder, rows, b"x" * size
        self.round = 0

    def fill(self) -> None:
        self.empty()
        self.our_sink()

    def empty(self) -> None:
        connection = pika.BlockingConnection(self.url)
        channel = connection.channel()
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=True)
        connection.close()

    def loop_reads(self) -> float:
        began, seen = time.perf_counter(), 0
        connection = pika.BlockingConnection(self.url)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        with (self.folder / f"loop-{self.round}").open("wb") as file:
            for method, _, body in channel.consume(QUEUE):
                file.write(body)
                seen += 1
                if seen % AT_ONCE == 0 or seen == self.rows:
                    file.flush()
                    os.fsync(file.fileno())
                    channel.basic_ack(method.delivery_tag, multiple=True)
                if seen == self.rows:
                    break
        connection.close()
        return time.perf_counter() - began

    def our_source(self) -> float:
        began = time.perf_counter()
        files = LocalFiles(self.folder / f"ours-{self.round}")
        segments = Segments(files.inside("kept"))
        progress = Progress(files, segments.identity("message_id"))
        receiver = Receiver(segments, progress, ReceiverSettings(acknowledge="stored"))
        settings = ConsumerSettings(
            server=self.settings, queue=QUEUE, prefetch=PREFETCH, exclusive=True, patience_s=60.0
        )
        consumer = QueueConsumer(settings, receiver)
        consumer.start()
        while receiver.ahead() < self.rows:
            consumer.check()
            time.sleep(0.005)
        took = time.perf_counter() - began
        consumer.stop()
        return took

    def our_sink(self) -> float:
        batch = pa.record_batch({"value": [self.body] * self.rows})
        rows = pa.RecordBatchReader.from_batches(batch.schema, [batch])
        token = ApplyToken(id=f"round-{self.round}", query="q", batch=0, slots=(0,), rows=self.rows)
        began = time.perf_counter()
        QueuePublish(self.settings, "", QUEUE)(rows, token)
        return time.perf_counter() - began

    def loop_writes(self) -> float:
        """Publishes a tenth of the messages, each confirmed before the next, and returns ten times the time taken."""
        connection = pika.BlockingConnection(self.url)
        channel = connection.channel()
        channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=2)
        began = time.perf_counter()
        for _ in range(self.rows // 10):
            channel.basic_publish("", QUEUE, self.body, persistent, mandatory=True)
        took = time.perf_counter() - began
        connection.close()
        return 10 * took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=4, help="number of rounds; the first does not count")
    given = parser.parse_args()
    took: dict[str, list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="sparkonce-bench-") as folder,
        RabbitServer(Path(folder) / "rabbit") as server,
    ):
        measured = Measured(server, Path(folder), given.rows, given.size)
        reading: dict[str, Callable[[], float]] = {
            "read: pika's loop": measured.loop_reads,
            "read: ours": measured.our_source,
        }
        writing: dict[str, Callable[[], float]] = {
            "write: pika's loop": measured.loop_writes,
            "write: ours": measured.our_sink,
        }
        for measured.round in range(given.rounds):
            for name, way in reading.items():
                measured.fill()
                took[name].append(way())
            for name, way in writing.items():
                measured.empty()
                took[name].append(way())
    for name, each in took.items():
        median = statistics.median(each[1:])
        print(f"{name:20} {given.rows / median:10,.0f} messages/s")


if __name__ == "__main__":
    main()
