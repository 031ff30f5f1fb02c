"""MariaDB and MySQL, with transactions that workers prepare or stage and the driver commits.

On both:
    ``sink``: the public class, which wires the other parts together.
    ``dialect``: the functions of both servers, for the shared committer and writer of ``sinks.sql``.
    ``settings``: the settings of a connection.
    ``connection``: PyMySQL's connection with deadlines and LOAD DATA from memory, and the differences between the two
        servers.
    ``names``: the names of XA branches, locks and staging tables, and the contents of a staging table's comment.
    ``statements``: the SQL that writes and merges.
    ``outcomes``: maps error numbers to outcomes and sentences.

On the executors:
    ``writer``: writes the rows of one task attempt to XA, to a staging table, or directly.
    ``target``: the target table, and the types it supports.
    ``encoding``: encodes Arrow columns as text.

On the driver:
    ``preflight``: checks server, table and privileges.
    ``finishing``: the table of markers, the server's identity, prepared branches (XA) and staging tables.
    ``orphans``: lists open transactions, for ``sparkonce transactions list``.
"""
