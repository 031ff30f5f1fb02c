"""A query's checkpoint, wherever Spark can put one.

- ``files``: the contract of the folder's files
- ``location``: reads the location that a user gives
- ``local``: the files of a folder on a local or mounted disk
- ``spark``: what Spark itself keeps there: the query's id, the batches' offsets, which of them are done
"""
