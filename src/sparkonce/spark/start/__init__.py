"""Checks a query before Spark runs its first batch.

- ``arguments``: its session, DataFrame, trigger, options and checkpoint folder.
- ``checks``: that the checkpoint belongs to the running query, where the query resumes, and its sources from there.
- ``first_batch``: the cost of its batches, and rows that would be written twice.
- ``executors``: that executors have the driver's sparkonce and what sinks and sources need, with one small job.
"""
