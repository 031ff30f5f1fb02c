"""PostgreSQL, with transactions that workers prepare or stage and the driver commits.

On both:
    ``sink``: the public class, which puts the parts together.
    ``settings``: the user's settings of server, table and times.
    ``connection``: connections, their deadlines, and how a transaction begins.
    ``names``: the names of a transaction on the server, and as a handle has it.
    ``markers``: the table that says which transactions are committed.
    ``statements``: the SQL that writes, merges and drops.
    ``catalog``: the table as the server's catalog describes it.
    ``outcomes``: SQLSTATE → outcome → sentence.

On the executors:
    ``writer``: writes one copy's rows in one transaction, by COPY.
    ``encoding``: Arrow columns as COPY's binary format, by pairs of types.

On the driver:
    ``preflight``: checks server, table, limits and privileges.
    ``committer``: finishes transactions that are prepared (PREPARE TRANSACTION) or staged (staging tables).
    ``orphans``: lists what is open, for ``sparkonce transactions list``.
"""
