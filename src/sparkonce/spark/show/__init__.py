"""Shows people a query's progress and its errors.

- ``display``: a line of the terminal that is kept up to date, or one line a batch.
- ``failures``: an error as PySpark is to show it.
- ``jobs``: the description of a batch's jobs in Spark's UI.
"""
