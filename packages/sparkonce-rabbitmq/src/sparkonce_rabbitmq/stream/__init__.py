"""Reads RabbitMQ streams: their protocol, positions and messages. Only ``data_source``, Spark's side, imports PySpark.

- ``connection``: a connection that reads a stream
- ``positions``: computes with positions, as Spark stores them
- ``asking``: queries where streams begin and end, on the driver
- ``reading``: reads a part of a stream, in a task
- ``chunks``: converts the chunks that the server sends to Arrow columns
"""
