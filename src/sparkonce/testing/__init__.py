"""The conformance suite for your own sinks.

``conformance`` contains the suite, ``hooks`` declares the methods that you implement, ``scene`` contains the code that
all checks share, and ``elsewhere`` finishes handles in another process.
"""
