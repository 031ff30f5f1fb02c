"""Everything that is started on this machine, for trying things out, for verification and for tests.

- ``process``: one process of a server, with its ports, log, signals and end
- ``child``: a Python program with all of its processes, such as a query's driver, JVM and workers
- ``background``: a thread that works until it is stopped, and stores its error
- ``kafka``: starts a real Kafka, with one broker or several; ``servers``: databases, an object store and HDFS
- ``proxy``: forwards between a client and a server, and can break connections or a single request
- ``disk``: a disk of a chosen size that can be filled
"""
