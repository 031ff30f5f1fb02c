"""Reads queries for the analyzer.

- ``explain``: `sparkonce.explain`.
- ``queries``: the facts of a query, a stream writer or a DataFrame, and the parts of its plan that may give different
  rows when it runs again.
"""
