"""Everything that is started on this machine, for trying out, verifying and tests.

- ``process`` owns one process of a server: its ports, log, signals and end.
- ``child`` owns a Python program with all that it starts: a query's driver, JVM and workers.
- ``background`` is a thread that works until it is stopped, and keeps its error.
- ``kafka`` starts a real Kafka, one broker or several; ``servers`` start databases, an object store and HDFS.
- ``proxy`` stands between a client and a server and breaks their connections, or one request.
- ``disk`` is a disk of a chosen size that can be filled.
"""
