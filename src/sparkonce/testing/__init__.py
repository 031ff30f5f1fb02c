"""The conformance suite, for sinks of your own.

``conformance`` is the suite, ``hooks`` is what it asks of you, and ``scene`` is shared. The checks are
``commit_checks``, ``abort_checks``, ``sweep_checks``, ``trace_checks`` and ``system_checks``; ``elsewhere`` commits in
another process.
"""
