"""Reads a classic or quorum queue of RabbitMQ. Only ``data_source``, Spark's side, imports PySpark.

- ``messages``: a message, how it is identified, and messages as Arrow rows
- ``segments``: received messages, stored durably in the checkpoint before Spark learns of them
- ``progress``: how far Spark has finished, according to its checkpoint
- ``receiver``: decides what is stored and what is acknowledged, independently of the connection
- ``consumer``: the thread that owns the connection
"""
