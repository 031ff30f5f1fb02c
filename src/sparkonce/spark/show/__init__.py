"""Shows people a query's errors and its jobs.

- ``failures``: an error as PySpark is to show it.
- ``jobs``: the description of a batch's jobs in Spark's UI.
"""
