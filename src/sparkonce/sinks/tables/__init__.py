"""The sinks for Delta and Iceberg: rows wait in files, and one write on the driver turns a batch into a table version.

The files and their ledger come from `sparkonce.sinks.write_ahead`.

- ``sink``: settings, columns and preflight of all tables
- ``committer``: the driver side of all tables: writes each batch once, and checks which version contains its rows
- ``table``: the interface that Delta and Iceberg tables implement
- ``delta``: Delta tables; needs their Spark package, and the driver's session
- ``iceberg``: Iceberg tables; needs their Spark package, and the driver's session
- ``merging``: the settings of a MERGE, their validation, and the resulting statement
- ``fitting``: adapts the types of rows to those of a table, and checks rows against the table's rules
- ``errors``: classifies errors from Spark and from tables
"""
