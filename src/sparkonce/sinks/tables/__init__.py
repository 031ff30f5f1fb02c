"""The sinks for Delta and Iceberg: rows wait in files, and one write on the driver makes a batch a table's version.

The files and their ledger are those of `sparkonce.sinks.write_ahead`.

- ``sink``: settings, columns and preflight of all tables
- ``committer``: the driver half of all tables: writes once, and checks which version has the rows
- ``table``: a table, by what differs between Delta and Iceberg
- ``delta``: Delta tables; needs their Spark package, and the driver's session
- ``iceberg``: Iceberg tables; needs the same
- ``merging``: the settings of a MERGE, their checks, and the statement that they make
- ``fitting``: fits the types of rows to those of a table, and checks rows against the table's rules
- ``errors``: the meaning of the errors of Spark and of tables
"""
