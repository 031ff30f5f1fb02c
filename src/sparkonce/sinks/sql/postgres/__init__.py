"""PostgreSQL, with transactions that workers prepare or stage and the driver commits.

On both:
    ``sink``: the public class, which wires the other parts together.
    ``dialect``: PostgreSQL's functions, for the shared committer and writer of ``sinks.sql``.
    ``settings``: the settings of a connection.
    ``connection``: opens connections, enforces deadlines, and begins transactions.
    ``names``: the names of sessions and staging tables on the server.
    ``statements``: the SQL that writes and merges.
    ``catalog``: describes the table according to the server's catalog.
    ``outcomes``: maps SQLSTATEs to outcomes and sentences.

On the executors:
    ``writer``: writes the rows of one task attempt with COPY.
    ``encoding``: encodes Arrow columns in COPY's binary format, depending on both types.

On the driver:
    ``preflight``: checks server, table, limits and privileges.
    ``finishing``: the table of markers, prepared transactions (PREPARE TRANSACTION) and staging tables.
    ``orphans``: lists open transactions, for ``sparkonce transactions list``.
"""
