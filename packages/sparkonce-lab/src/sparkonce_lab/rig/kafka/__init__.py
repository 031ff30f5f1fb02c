"""A real Kafka on this machine, for trying out and for tests: no Docker, no download by hand.

- ``jars`` fetches Java libraries, and keeps loaded classes for a faster start.
- ``broker`` is one node with its settings, ``cluster`` several.
- ``detached`` keeps a cluster that outlives the command which started it.
"""

from sparkonce_lab.rig.kafka.broker import Broker
from sparkonce_lab.rig.kafka.cluster import FAST_START, Cluster
from sparkonce_lab.rig.kafka.jars import KAFKA_VERSION, resolve, spark_avro_jars, spark_kafka_jars

__all__ = ["FAST_START", "KAFKA_VERSION", "Broker", "Cluster", "resolve", "spark_avro_jars", "spark_kafka_jars"]
