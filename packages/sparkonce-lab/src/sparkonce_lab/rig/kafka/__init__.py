"""A real Kafka on this machine, for trying things out and for tests, without Docker or manual downloads.

- ``jars``: downloads Java libraries, and archives loaded classes for a faster start
- ``broker``: one node with its settings; ``cluster``: several nodes
- ``detached``: a cluster that outlives the command that started it
"""

from sparkonce_lab.rig.kafka.broker import Broker
from sparkonce_lab.rig.kafka.cluster import FAST_START, Cluster
from sparkonce_lab.rig.kafka.jars import KAFKA_VERSION, resolve, spark_avro_jars, spark_kafka_jars

__all__ = ["FAST_START", "KAFKA_VERSION", "Broker", "Cluster", "resolve", "spark_avro_jars", "spark_kafka_jars"]
