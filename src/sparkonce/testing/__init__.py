"""The conformance suite, for sinks of your own.

``conformance`` is the suite, ``hooks`` is what you implement, and ``scene`` is shared by the checks. The checks are in
``commit_checks``, ``abort_checks``, ``sweep_checks``, ``trace_checks`` and ``system_checks``; ``elsewhere`` commits in
another process.
"""
