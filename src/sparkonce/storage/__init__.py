"""A query's checkpoint, in any store that Spark supports.

- ``files``: the interface of the checkpoint's files, and the test that a store can hold a decision log
- ``location``: parses the location that a user passes
- ``local``: the files of a folder on a local or mounted disk
- ``hdfs``: the files of a folder in HDFS, and puts by renaming for every HDFS client
- ``objects``: the files of a folder in an object store
- ``opening``: opens a checkpoint without a Spark session, and translates Hadoop's object store settings
- ``spark_checkpoint``: reads Spark's own files: the query's id, the offsets of batches, and which batches are done
- ``offsets``: compares offsets
"""
