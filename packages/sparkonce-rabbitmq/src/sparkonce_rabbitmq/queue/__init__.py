"""Reads a classic or quorum queue of RabbitMQ. Only ``data_source`` imports PySpark: Spark's side.

- ``messages``: a message, what tells it from others, and messages as Arrow rows.
- ``segments``: received messages, kept durably in the checkpoint before Spark is told of them.
- ``memory``: the ids of messages that were kept.
- ``progress``: how far Spark has finished, from its checkpoint.
- ``receiver``: decides what is kept and what is acknowledged; knows no connection.
- ``consumer``: the thread that holds the connection.
"""
