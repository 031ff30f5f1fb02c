"""Reaches a checkpoint as Spark does: with the session's Hadoop settings and credentials.

- ``opening``: finds the store of a checkpoint's location
"""
