"""Tables of SQL databases: one two-phase commit, and a package for each dialect.

On both:
    ``dialect``: the functions that each database provides.
    ``sink``: the base of the public classes.
    ``settings``: the user's settings for the table, its rows and time limits.
    ``transactions``: the transaction of a task attempt as a value, and as its handle describes it.
    ``pool``: idle connections for reuse.

On the executors:
    ``writer``: writes the rows of one task attempt in one transaction.

On the driver:
    ``committer``: finishes transactions that are prepared, or staged in their own tables.
"""
