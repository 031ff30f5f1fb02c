"""Any system that a function can be written for: rows wait in the checkpoint, and the function gets decided rows.

The sinks for Delta and Iceberg, `sparkonce.spark.tables`, keep their rows and their ledger here, too.

- ``sink``: settings, and the sink's other parts
- ``writer``: the executor half, which fills one file of rows
- ``committer``: the driver half, which commits files by calls of the function
- ``application``: one such call, and what surrounds it
- ``apply``: what the function gets, returns and raises
- ``calls``: runs calls of the function with a deadline
- ``folder``: the folder in which rows wait, and their states
- ``disk``: the same on a disk that the driver and all executors see
- ``stored``: the same on an object store, or HDFS
- ``entry``: one file of rows, as its handle names it
- ``rows``: writes rows to a file, and reads them back
- ``ledger``: the durable notes that tell an applied file from a lost one
"""
