"""The conformance suite, for sinks of your own.

``conformance`` is the suite, ``hooks`` is what you implement, ``scene`` is shared by the checks, and ``elsewhere``
commits in another process.
"""
