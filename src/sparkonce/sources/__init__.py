"""A query's sources: settings, checks, and a consumer group's offsets. Does not import PySpark.

- ``kafka``: settings of Spark's Kafka source, under librdkafka's or Java's names, and its starting offsets
- ``topics``: checks the brokers of Kafka sources at each start, and the ids of their topics
- ``offsets``: reads a batch's offsets in Spark's offset log
- ``groups``: commits a batch's offsets to a consumer group
"""
