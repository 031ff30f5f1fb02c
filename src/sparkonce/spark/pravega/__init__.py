"""The sink for Pravega: rows wait in files, and the driver's JVM writes a batch in one transaction of a stream.

The files and their ledger are those of `sparkonce.sinks.write_ahead`.

- ``sink``: settings, columns, preflight
- ``application``: the driver half: writes once, and asks for a transaction's status where that is unknown
- ``notes``: the transactions that were begun for a batch, in the checkpoint
- ``client``: Pravega's Java client, in the JVM of the driver's session
"""
