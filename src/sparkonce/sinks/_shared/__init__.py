"""The frame that all sinks stand on.

On the driver:
    ``committing``: answers in the order of the handles, finishes in parallel, tidies every so many batches.
    ``databases``: a committer over pooled sessions, which turns a driver's errors into outcomes.
    ``error_table``: a server's error code, class or phrase → outcome → sentence.
    ``preflight``: refuses a setting or a server, with what to do about it.
    ``names``: tells whose transactions are whose.
    ``orphans``: one open thing on a server, as ``sparkonce transactions list`` lists it.
    ``went_back``: the error of a server that has lost a commit.

On the executors:
    ``pieces``: cuts record batches and arrays into pieces of bounded size.
    ``refusing``: finds the rows that a server refuses.
    ``arrow_text``: Arrow columns as text and as JSON.

On both:
    ``settings``: checks that the same setting is refused in the same words by every sink.
    ``idle_pool``: connections that are used again.
    ``tls_files``: opens the files of a client's TLS settings.
"""
