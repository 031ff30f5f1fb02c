"""The sources of a query: settings, jars, and a consumer group's offsets. Imports no PySpark.

- ``kafka``: settings of Spark's Kafka source, in librdkafka's or Java's names, and where it starts the first time.
- ``topics``: what a start asks the brokers of Kafka sources, and topics' ids.
- ``packages``: Maven coordinates of Spark's modules and table formats.
- ``offsets``: offsets of a batch in Spark's offset log.
- ``groups``, ``group_client``: commit them to a consumer group, by the Kafka sink's connection.
"""
