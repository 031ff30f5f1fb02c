"""MariaDB and MySQL, with transactions that workers prepare or stage and the driver commits.

On both:
    ``sink``: the public class, which puts the parts together.
    ``dialect``: their functions, for the one committer and writer of ``sinks.sql``.
    ``settings``: the settings of a connection.
    ``connection``: PyMySQL's connection with deadlines and LOAD DATA from memory, and the differences between the two
    servers.
    ``names``: the names of XA branches, locks and staging tables, and what a staging table's comment says.
    ``statements``: the SQL that writes and merges.
    ``outcomes``: error number → outcome → sentence.

On the executors:
    ``writer``: writes one copy's rows to XA, to a staging table, or directly.
    ``target``: the target table, and which types it takes.
    ``encoding``: Arrow columns as text.

On the driver:
    ``preflight``: checks server, table and privileges.
    ``finishing``: the table of markers, the server's identity, prepared branches (XA) and staging tables.
    ``orphans``: lists what is open, for ``sparkonce transactions list``.
"""
