"""The frame that all sinks stand on.

On the driver:
    ``committing``: answers in the order of the handles, finishes in parallel, tidies every so many batches.
    ``error_table``: a server's error code, class or phrase → outcome → sentence.
    ``preflight``: refuses a setting or a server, with what to do about it.
    ``orphans``: one open thing on a server, as ``sparkonce transactions list`` lists it.

On the executors:
    ``arrow``: Arrow columns as text, batches in pieces, and the rows that a server refuses.
    ``parquet``: writes Parquet as Spark does.

On both:
    ``settings``: checks that the same setting is refused in the same words by every sink.
"""
