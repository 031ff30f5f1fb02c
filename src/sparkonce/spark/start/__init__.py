"""Checks a query before Spark runs its first batch.

- ``arguments``: its session, frame, trigger, options and checkpoint folder.
- ``checks``: that the checkpoint is the running query's, where the query resumes, and its sources from there.
- ``first_batch``: the cost of its batches, and rows that are written twice.
- ``executors``: that executors have the driver's sparkonce and what sinks and sources need, by one small job.
"""
