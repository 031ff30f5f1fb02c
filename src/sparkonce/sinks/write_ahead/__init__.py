"""Any system that a function can be written for: rows wait in the checkpoint, and the function gets decided rows.

The sinks for Delta and Iceberg, `sparkonce.sinks.tables`, keep their rows and their ledger here, too.

- ``sink``: settings, and the sink's other parts
- ``writer``: the executor half, which fills one file of rows
- ``committer``: the driver half, which commits files by calls of the function
- ``application``: what the function gets, returns and raises, and one call of it
- ``folder``: the folder in which rows wait, and their states, on a disk or a store
- ``rows``: writes rows to a file, and reads them back
- ``ledger``: the durable notes that tell an applied file from a lost one
"""
