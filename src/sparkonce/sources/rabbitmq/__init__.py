"""Reads RabbitMQ streams: their protocol, positions and messages. Imports no PySpark.

- ``connection``: a connection that reads a stream.
- ``places``: computes with positions, as Spark stores them.
- ``asking``: the driver's side: where streams begin and end.
- ``reading``: a task's side: a part of a stream.
- ``queue``: classic and quorum queues, which are kept in the checkpoint.
- ``chunks``, ``amqp``: what the server sends, as Arrow columns.
"""
