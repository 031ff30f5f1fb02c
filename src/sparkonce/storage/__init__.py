"""A query's checkpoint, wherever Spark can put one.

- ``files``: the contract of the folder's files
- ``location``: reads the location that a user gives
- ``local``: the files of a folder on a local or mounted disk
- ``hdfs``: the files of a folder in HDFS, and puts by renaming for every client of HDFS
- ``objects``: the files of a folder in an object store; ``proof`` proves that one can carry a decision log
- ``opening``: opens a checkpoint without a session of Spark, and translates Hadoop's settings of an object store
- ``spark``: what Spark itself keeps there: the query's id, the batches' offsets, which of them are done; ``offsets``
  compares offsets
"""
