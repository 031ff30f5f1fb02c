"""The sink for Pravega: rows wait in files, and the driver's JVM writes a batch in one transaction of a stream.

The files and their ledger are those of `sparkonce.sinks.write_ahead`.

- ``cluster``: the cluster's address, and how to log in there
- ``sink``: settings, columns, preflight
- ``application``: the driver half: writes once, and asks for a transaction's status where that is unknown
- ``notes``: the transactions that were begun for a batch, in the checkpoint
- ``segments``: the times at which a stream's segments were made, which tell it from a later one of its name
- ``client``: Pravega's Java client, in the JVM of the driver's session
"""
