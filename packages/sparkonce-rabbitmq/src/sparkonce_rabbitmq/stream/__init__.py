"""Reads RabbitMQ streams: their protocol, positions and messages. Only ``data_source``, Spark's side, imports PySpark.

- ``connection``: a connection that reads a stream
- ``positions``: computes with positions, as Spark stores them
- ``asking``: the driver's side: where streams begin and end
- ``reading``: a task's side: a part of a stream
- ``chunks``: what the server sends, as Arrow columns
"""
