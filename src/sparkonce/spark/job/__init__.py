"""Runs a user's file, and ends its queries in order.

- ``run``: ``sparkonce run``.
- ``script``: runs a file as ``python FILE`` would.
- ``ending``: waits for queries, and stops them in order when a signal comes.
"""
