"""Tables of SQL databases: a common two-phase commit, and a package for each database.

On both:
    ``dialect``: the functions that each database provides.
    ``sink``: the base of the public classes.
    ``settings``: the user's settings for the table, its rows and time limits.
    ``transactions``: a task attempt's transaction as a value, and its representation in a handle.
    ``pool``: idle connections for reuse.

On the executors:
    ``writer``: writes the rows of one task attempt in one transaction.

On the driver:
    ``committer``: finishes transactions that are prepared, or staged in their own tables.
"""
