"""PostgreSQL, with transactions that workers prepare or stage and the driver commits.

On both:
    ``sink``: the public class, which wires the other parts together.
    ``dialect``: PostgreSQL's functions, for the shared committer and writer of ``sinks.sql``.
    ``settings``: the settings of a connection.
    ``connection``: connections, their deadlines, and how a transaction begins.
    ``names``: the names of sessions and staging tables on the server.
    ``statements``: the SQL that writes and merges.
    ``catalog``: the table as the server's catalog describes it.
    ``outcomes``: maps SQLSTATEs to outcomes and sentences.

On the executors:
    ``writer``: writes the rows of one task attempt with COPY.
    ``encoding``: Arrow columns in COPY's binary format, by pairs of types.

On the driver:
    ``preflight``: checks server, table, limits and privileges.
    ``finishing``: the table of markers, prepared transactions (PREPARE TRANSACTION) and staging tables.
    ``orphans``: lists what is open, for ``sparkonce transactions list``.
"""
