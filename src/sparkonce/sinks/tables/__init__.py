"""The sinks for Delta and Iceberg: rows wait in files, and one write on the driver turns a batch into a table version.

The files and their ledger are those of `sparkonce.sinks.write_ahead`.

- ``sink``: settings, columns and preflight of all tables
- ``committer``: the driver side of all tables: writes once, and checks which version has the rows
- ``table``: what differs between Delta and Iceberg tables
- ``delta``: Delta tables; needs their Spark package, and the driver's session
- ``iceberg``: Iceberg tables; needs the same
- ``merging``: the settings of a MERGE, their validation, and the resulting statement
- ``fitting``: adapts the types of rows to those of a table, and checks rows against the table's rules
- ``errors``: classifies errors from Spark and from tables
"""
