"""Reaches a checkpoint as Spark does: with the session's Hadoop settings and credentials.

- ``opening``: finds the store of a checkpoint's location
- ``planned``: compares a batch's offsets in the checkpoint with those in the query's memory
- ``hadoop``: the files of a folder in HDFS
- ``workers``: reaches that folder from Python workers
- ``s3a``: the files of a folder in S3, by Hadoop's client
- ``calls``: makes calls of Hadoop's clients within a deadline, and reads their exceptions
"""
