"""The sources of a query: settings, jars, and a consumer group's offsets. Imports no PySpark.

- ``consumer``, ``consumer_names``: settings of Spark's Kafka source, from librdkafka's or Java's names.
- ``starting``: where a Kafka source starts the first time.
- ``packages``: Maven coordinates of Spark's modules and table formats.
- ``offsets``: a batch's end offsets, from Spark's offset log.
- ``group_offsets``, ``group_client``: commit these offsets to a consumer group, by the Kafka sink's connection.
- ``rabbitmq``: RabbitMQ streams.
"""
