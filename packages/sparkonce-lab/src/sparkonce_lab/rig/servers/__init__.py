"""Real servers, each a plain process on a free loopback port, with its data in a folder of the caller's.

- ``process`` is what all of them share: they start, die, and come back with their data.
- ``postgres``, ``mariadb``, ``redis`` (one server or a cluster), ``rabbitmq``, ``s3`` (versitygw), ``hdfs`` and
  ``pravega`` are the servers.
"""
