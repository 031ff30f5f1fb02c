"""The files sink: a folder or a bucket in which readers see exactly the committed rows.

The stores:

- ``local``: a folder of a local or mounted POSIX file system
- ``hdfs``: a folder in HDFS; ``renaming`` is common to both
- ``s3``: a prefix of a bucket

What is common to all of them:

- ``sink``: settings, preflight, and the sink's other parts
- ``writer``: the executor half, which encodes rows into staged files
- ``committer``: the driver half, which publishes and discards files
- ``store``: the contract of a store, and what all stores share
- ``locations``: opens the store of a path or URL
- ``names``: file names, names hidden from readers, and partition folders such as ``a=1/b=x``
- ``manifests``: one small file per batch that lists its files, and what compactions have made of old batches
- ``compaction``: writes small files of old batches into larger ones
- ``orphans``: lists what is staged, for ``sparkonce transactions list``
- ``reading``: the files of whole batches, for readers
- ``formats``: Parquet, CSV, JSON, Arrow and text: options, types and encoders
"""
