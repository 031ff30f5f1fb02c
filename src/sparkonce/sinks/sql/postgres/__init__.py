"""PostgreSQL, with transactions that workers prepare or stage and the driver commits.

On both:
    ``sink``: the public class, which puts the parts together.
    ``dialect``: PostgreSQL's functions, for the one committer and writer of ``sinks.sql``.
    ``settings``: the settings of a connection.
    ``connection``: connections, their deadlines, and how a transaction begins.
    ``names``: the names of sessions and staging tables on the server.
    ``statements``: the SQL that writes and merges.
    ``catalog``: the table as the server's catalog describes it.
    ``outcomes``: SQLSTATE → outcome → sentence.

On the executors:
    ``writer``: writes one copy's rows by COPY.
    ``encoding``: Arrow columns as COPY's binary format, by pairs of types.

On the driver:
    ``preflight``: checks server, table, limits and privileges.
    ``finishing``: the table of markers, prepared transactions (PREPARE TRANSACTION) and staging tables.
    ``orphans``: lists what is open, for ``sparkonce transactions list``.
"""
