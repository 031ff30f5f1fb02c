"""The sinks for Delta and Iceberg: rows wait in files, and one write on the driver makes a batch a table's version.

The files and their ledger are those of `sparkonce.sinks.write_ahead`.

- ``sink``: settings, columns and preflight of all tables
- ``committer``: the driver half of all tables: writes once, and checks which version has the rows
- ``table``: a table, by what differs between Delta and Iceberg
- ``delta``: Delta tables; needs their Spark package, and the driver's session
- ``iceberg``: Iceberg tables; needs the same
- ``merging``: the settings of a MERGE, and the statement that they make
- ``merge_checks``: checks them against the columns of table and rows
- ``fitting``: compares types of rows and table at every depth, and fits one into the other
- ``repeats``: looks for several rows of one key
- ``rules``: the rules of a table for every row
- ``row_checks``: checks rows against them before the decision
- ``errors``: the meaning of the errors of Spark and of tables
"""
