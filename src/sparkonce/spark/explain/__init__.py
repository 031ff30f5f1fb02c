"""Reads queries for the analyser.

- ``explain``: `sparkonce.explain`.
- ``queries``: the facts of a query, a stream writer or a DataFrame.
- ``dry_run``: runs a file without starting its queries.
"""
