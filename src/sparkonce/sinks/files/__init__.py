"""The files sink: a folder or a bucket in which readers see exactly the committed rows.

The stores, a room each with the same modules:

- ``local``: a folder of a local or mounted POSIX file system
- ``hdfs``: a folder in HDFS
- ``s3``: a prefix of a bucket

The hall, common to all of them:

- ``sink``: settings, preflight, and the sink's other parts
- ``writer``: the executor half, which encodes rows into staged files
- ``committer``: the driver half, which publishes and discards files
- ``store``: the contract of a store
- ``places``: opens the store of a path or URL
- ``names``: names of files, and what is hidden from readers
- ``handle``: a slot's files in its handle, or in a list beside it
- ``outcomes``: one outcome of a transaction from those of its files
- ``manifests``: one small file a batch that lists its files
- ``generations``: what compactions have made of old batches
- ``compaction``: writes small files of old batches into larger ones
- ``rewriting``: the rows of many files in few, by format
- ``orphans``: lists what is staged, for ``sparkonce transactions list``
- ``reading``: the files of whole batches, for readers
- ``formats``: Parquet, CSV, JSON, Arrow and text: options and encoders
- ``cells``: rows as lines of CSV, JSON and text
- ``types``: the Spark types that each format takes
- ``partitions``: folders such as ``a=1/b=x``
- ``streams``: the stream that pyarrow writes to, which computes the checksum
"""
