"""Checks a query before Spark runs its first batch.

- ``arguments``: checks the session, DataFrame, trigger, options and checkpoint folder.
- ``checks``: checks the query's sources, and that the checkpoint belongs to the query.
- ``first_batch``: warns about expensive first batches.
- ``executors``: checks, with one small job, that executors have the driver's sparkonce and what sinks and sources need.
"""
