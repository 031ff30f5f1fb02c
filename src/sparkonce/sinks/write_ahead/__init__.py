"""Writes to any system through a user's function. Rows wait in the checkpoint until their batch is decided.

The sinks for Delta and Iceberg, `sparkonce.sinks.tables`, also keep their rows and their ledger here.

- ``sink``: the settings; it creates the other parts.
- ``writer``: the executor half, which fills one file of rows.
- ``committer``: the driver half, which commits files by calling the function.
- ``application``: what the function receives, returns and raises, and how it is called.
- ``folder``: the folder in which rows wait, and their states, on a disk or a store.
- ``rows``: writes rows to a file, and reads them back.
- ``ledger``: durable notes that distinguish an applied file from a lost one.
"""
