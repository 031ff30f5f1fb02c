"""Tables of SQL databases: one two-phase commit, and a package for each dialect.

On both:
    ``dialect``: what a database has to bring: a value of functions.
    ``settings``: the user's settings of the table, its rows and the times that requests may take.
    ``transactions``: a copy's transaction as a value, and as its handle names it.
    ``pool``: idle connections that are used again.

On the executors:
    ``writer``: writes one copy's rows in one transaction.

On the driver:
    ``committer``: finishes transactions that are prepared, or staged in tables of their own.
"""
