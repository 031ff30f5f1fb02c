"""Reaches a checkpoint as Spark does: with the session's Hadoop settings and credentials.

- ``opening``: finds the store of a checkpoint's location
- ``planned``: compares a batch's offsets in the checkpoint with those in the query's memory
- ``hadoop``: the files of a folder in HDFS, from the driver and from Python workers; calls of Hadoop's clients
- ``s3a``: the files of a folder in S3, by Hadoop's client
"""
