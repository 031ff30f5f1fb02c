"""Tables of SQL databases: a common two-phase commit, and a package for each database.

On both:
    ``dialect``: the functions that each database provides, and a task attempt's transaction as a value.
    ``sink``: the base of the public classes.
    ``settings``: the user's settings for the table, its rows and time limits, and the SQL of an upsert's conditions.
    ``pool``: idle connections for reuse.

On the executors:
    ``writer``: writes the rows of one task attempt in one transaction.

On the driver:
    ``committer``: finishes transactions that are prepared, or staged in their own tables.

In the package of each database:
    ``sink``: the public class.
    ``dialect``: its functions, for the shared committer and writer.
    ``settings``: the settings of a connection, and the names of objects on the server.
    ``connection``: opens connections, and enforces deadlines.
    ``statements``: the SQL that writes and merges.
    ``catalog``: describes the table, and the types that it supports.
    ``encoding``, ``writer``: encode Arrow columns, and send the rows of one task attempt.
    ``outcomes``: maps the server's errors to outcomes and sentences.
    ``preflight``: checks server, table, limits and privileges.
    ``finishing``: the table of markers, prepared transactions and staging tables.
    ``orphans``: lists open transactions, for ``sparkonce transactions list``.

To add a database, implement the functions of ``dialect.Dialect``, as tests/conformance/sqlite_dialect.py does. Then
register its name in ``operate.systems``, ``spark.formats`` and ``cli.transactions``.
"""
