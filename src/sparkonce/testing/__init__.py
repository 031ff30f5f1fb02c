"""The conformance suite for your own sinks.

``conformance`` contains the suite, ``hooks`` the methods that you implement, ``scene`` the code that all checks share,
and ``elsewhere`` a commit in another process.
"""
