"""Counts orders by customer, exactly once. Run it again, or kill it in the middle: the totals stay right."""

# %% Kafka: its address, and two topics. Existing topics are left unchanged.
import json
import os
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sparkonce import ExactlyOnce, KafkaSink, await_end, read_kafka, spark_packages

BROKER = {"bootstrap.servers": os.environ.get("BROKER", "127.0.0.1:9092")}
admin = AdminClient({**BROKER, "log_level": 2})  # without this, it would report an unreachable broker 20 times a second
try:
    there = admin.list_topics(timeout=5).topics
except KafkaException as error:
    raise SystemExit(
        f"No Kafka answers at {BROKER}: {error.args[0].str()}\nNext: sparkonce broker up --port 9092"
    ) from None
for topic in {"orders", "totals"} - there.keys():
    admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result()

# %% A thousand more orders.
producer = Producer(BROKER)
for number in range(1000):
    order = {"customer": ("ada", "grace", "linus")[number % 3], "cents": 100 + number}
    producer.produce("orders", json.dumps(order))
producer.flush()

# %% The job: adds everything that has arrived since the last run to the totals.
spark = (
    SparkSession.builder.config("spark.jars.packages", spark_packages())  # in case Spark starts here
    .config("spark.sql.shuffle.partitions", 2)  # transactions per batch; Spark's default is 200
    .config("spark.ui.showConsoleProgress", "false")  # Spark's progress bar would overwrite sparkonce's line
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
text = F.col("value").cast("string")
orders = read_kafka(spark, BROKER, topics="orders").select(F.from_json(text, "customer string, cents long").alias("o"))
totals = orders.groupBy("o.customer").agg(F.count("*").alias("orders"), F.sum("o.cents").alias("cents"))
rows = totals.select(F.col("customer").alias("key"), F.to_json(F.struct("*")).alias("value"))

once = ExactlyOnce(KafkaSink(BROKER, topic="totals"), checkpoint=str(Path("checkpoint").absolute()))
query = once.start(rows, output_mode="update", trigger="availableNow")  # or "1 second"
await_end(query)  # Ctrl-C and SIGTERM stop it gracefully

# %% What a reader of committed data sees. Kafka's own default is read_uncommitted.
reader = Consumer({**BROKER, "group.id": "look", "isolation.level": "read_committed", "enable.partition.eof": True})
partitions = {topic: admin.list_topics(topic, timeout=15).topics[topic].partitions for topic in ("orders", "totals")}
reader.assign([TopicPartition("totals", number, OFFSET_BEGINNING) for number in partitions["totals"]])
seen, ends = {}, 0
while ends < len(partitions["totals"]):
    record = reader.poll(15)
    if record is None:
        raise TimeoutError(f"{BROKER} returned nothing for 15 s.")
    if record.error() is None:
        seen[record.key().decode()] = json.loads(record.value())
    elif record.error().code() == KafkaError._PARTITION_EOF:
        ends += 1
    else:
        raise KafkaException(record.error())
sent = sum(reader.get_watermark_offsets(TopicPartition("orders", number))[1] for number in partitions["orders"])
reader.close()
for customer, total in sorted(seen.items()):
    print(f"{customer:6} {total['orders']:6,} orders, {total['cents']:9,} cents")
print(f"{'all':6} {sum(total['orders'] for total in seen.values()):6,} orders, of {sent:,} that were sent")
