"""The common base of all sinks.

On the driver:
    ``committing``: returns answers in the order of the handles, finishes in parallel, and tidies at intervals of
        batches.
    ``error_table``: maps a server's error code, class or phrase to an outcome and a sentence.
    ``preflight``: refuses a setting or a server, with the next step.
    ``orphans``: an open transaction, session or table on a server, for ``sparkonce transactions list``.

On the executors:
    ``arrow``: Arrow columns as text, batches in pieces, and the rows that a server refuses.
    ``parquet``: writes Parquet files as Spark does.

On both:
    ``settings``: checks of common settings, so that every sink refuses them with the same message.
"""
