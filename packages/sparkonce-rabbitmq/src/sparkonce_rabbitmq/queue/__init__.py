"""Reads a classic or quorum queue of RabbitMQ. Only ``data_source``, Spark's side, imports PySpark.

- ``messages``: a message, its identity, and the conversion of messages to Arrow rows
- ``segments``: received messages, stored durably in the checkpoint before Spark learns of them
- ``progress``: reads from Spark's checkpoint which batches are finished
- ``receiver``: decides what is stored and what is acknowledged, independently of the connection
- ``consumer``: the thread that owns the connection
"""
