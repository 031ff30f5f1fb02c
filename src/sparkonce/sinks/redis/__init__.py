"""Redis: workers stage rows in Redis, and scripts apply them once the batch is decided.

Shared by both sides:

- ``sink``: the sink's settings; it connects the parts
- ``nodes``: the connections to a server, or to the nodes of a cluster
- ``names``: the sink's keys, the ledger's entries, and the hash slots of a cluster
- ``scripts``: the scripts that run inside Redis

On the executors:

- ``encoding``: turns Arrow batches into chunks of commands, and maps columns to commands
- ``writer``: stages chunks, or writes them immediately

On the driver:

- ``preflight``: checks the server
- ``committer``: applies staged chunks, aborts, and reads the state of transactions
- ``orphans``: lists unfinished transactions for ``sparkonce transactions list``
- ``outcomes``: maps each response to an outcome
"""
