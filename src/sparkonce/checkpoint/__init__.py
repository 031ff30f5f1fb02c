"""A query's checkpoint, wherever Spark can put one.

- ``files``: the contract of the folder's files
- ``location``: reads the location that a user gives
- ``local``: the files of a folder on a local or mounted disk
- ``hdfs``: the files of a folder in HDFS, by a client without a JVM
- ``renaming``: puts by renaming, for every client of HDFS
- ``parts``: a file of a store, read by its parts
- ``deadlines``: waits for calls that may hang
- ``objects``: the files of a folder in an object store, by a client of our own; ``object_errors`` reads its errors
- ``credentials``: translates Hadoop's settings of an object store for that client
- ``opening``: opens a checkpoint without a session of Spark
- ``proof``: proves that an object store can carry a decision log
- ``spark``: what Spark itself keeps there: the query's id, the batches' offsets, which of them are done; ``offsets``
  compares offsets
"""
