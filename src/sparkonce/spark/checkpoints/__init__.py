"""Opens a checkpoint the way Spark does, with the session's Hadoop settings and credentials.

- ``opening``: finds the store of a checkpoint's location.
- ``planned``: compares a batch's offsets in the checkpoint with those in the query's memory.
- ``hadoop``: the files of a folder in HDFS through Hadoop's own client, for a driver with a JVM.
"""
