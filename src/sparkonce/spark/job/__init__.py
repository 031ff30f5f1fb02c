"""Runs a user's file, and ends its queries gracefully.

- ``run``: ``sparkonce run``.
- ``script``: runs a file as ``python FILE`` would.
- ``ending``: waits for queries, and stops them gracefully when a signal arrives.
"""
