"""Shows users a query's errors and its jobs.

- ``failures``: an error in the form that PySpark should show.
- ``jobs``: the description of a batch's jobs in Spark's UI.
"""
