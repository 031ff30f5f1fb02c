"""MariaDB and MySQL, with transactions that workers prepare or stage and the driver commits.

On both:
    ``sink``: the public class, which puts the parts together.
    ``settings``: the settings of a connection.
    ``connection``: PyMySQL's connection with deadlines, LOAD DATA from memory and MariaDB's bulk protocol.
    ``flavours``: the differences between the two servers.
    ``names``: the names of branches of XA, staging tables and locks.
    ``statements``: the SQL that writes and merges.
    ``markers``: the table that says which transactions are committed or open, and the server's identity.
    ``outcomes``: error number → outcome → sentence.

On the executors:
    ``writer``: writes one copy's rows.
    ``ways``: its three ways: to XA, to a staging table, or directly.
    ``target``: the target table, and which types it takes.
    ``encoding``, ``bulk``: Arrow columns as text, and in the bulk protocol's binary form.

On the driver:
    ``preflight``: checks server, table and rights.
    ``committer``: finishes transactions by ``prepared`` (XA) and ``staged`` (staging tables).
    ``orphans``: lists what is open, for ``sparkonce transactions list``.
"""
