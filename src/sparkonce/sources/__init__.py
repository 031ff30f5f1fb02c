"""A query's sources: settings, jars, and a consumer group's offsets. Does not import PySpark.

- ``kafka``: settings of Spark's Kafka source, with librdkafka's or Java's names, and its starting offsets.
- ``topics``: what a start checks with the brokers of Kafka sources, including topic ids.
- ``packages``: Maven coordinates of Spark's modules and table formats.
- ``offsets``: a batch's offsets in Spark's offset log.
- ``groups``, ``group_client``: commit them to a consumer group, over the Kafka sink's connection.
"""
