"""The sinks: one package for each external system. None of these packages imports another.

- ``kafka``: topics, written in Kafka transactions.
- ``files``: folders and buckets of files.
- ``sql``: tables of PostgreSQL, MariaDB and MySQL.
- ``redis``: keys of Redis.
- ``write_ahead``: any system, through a function that the user supplies. Its rows wait in files.
- ``tables``: tables of Delta and Iceberg, based on ``write_ahead``.
- ``memory``: a simulated system in this process, for tests.

``_shared`` contains the code that several sinks use.
"""
