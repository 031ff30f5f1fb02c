"""Everything that is started on this machine, for trying out, verifying and tests. The product never imports it.

``kafka`` is a real Kafka, one broker or several; ``servers`` are the databases, object store and file system;
``proxy`` stands between a client and a server and breaks their connection; ``disk`` is a disk that can be filled.
"""
