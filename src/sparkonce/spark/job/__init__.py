"""Runs a user's file, and ends its queries gracefully.

- ``run``: ``sparkonce run``.
- ``ending``: waits for queries, and stops them gracefully when a signal arrives.
"""
