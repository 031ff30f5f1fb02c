"""The decision log: one linear log a query, beside Spark's own checkpoint.

- ``base``: what a store of the log promises, and the log of records that is read from it and appended to it
- ``holes``: finds a record that is missing among others
- ``local``: the store in a folder of a local or mounted disk
- ``files``: the store in a checkpoint anywhere else, and the choice between the two
"""
