"""The common base of all sinks.

On the driver:
    ``committing``: finishes transactions in parallel, and schedules periodic cleanup.
    ``error_table``: maps a server's error code, error class or message to an outcome and a sentence.
    ``preflight``: builds the errors that reject a setting or a server, with the next step.
    ``orphans``: describes an open transaction, session or table, for ``sparkonce transactions list``.

On the executors:
    ``arrow``: converts Arrow columns to text, splits record batches, and finds the rows that a server rejects.
    ``parquet``: writes Parquet files as Spark does.

On both:
    ``settings``: checks common settings, so that every sink rejects them with the same message.
"""
