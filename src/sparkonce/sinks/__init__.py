"""The sinks, a package for each external system. None imports another.

- ``kafka``: topics, in Kafka's transactions.
- ``files``: folders and buckets of files.
- ``sql``: tables of PostgreSQL, and of MariaDB and MySQL.
- ``redis``: keys of Redis.
- ``write_ahead``: a function of the user's, applied to files of rows.
- ``memory``: a system in this process, for tests.

``_shared`` is the frame that they have in common.
"""
