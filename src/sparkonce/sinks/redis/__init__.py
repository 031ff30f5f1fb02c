"""Redis: workers stage rows there, and scripts apply them once the batch is decided.

For both halves:

- ``sink``: the sink's settings; it puts the parts together.
- ``nodes``: the connections to a server, or to the nodes of a cluster.
- ``names``: the sink's keys, the ledger's entries, and the hash slots of a cluster.
- ``scripts``: the scripts that run inside Redis.

On the executors:

- ``encoding``: turns Arrow batches into chunks of commands, and says which columns make which commands.
- ``writer``: stages chunks, or writes them at once.

On the driver:

- ``preflight``: checks the server.
- ``committer``: has staged chunks applied, aborts, and reads the state of transactions.
- ``orphans``: lists unfinished transactions for ``sparkonce transactions list``.
- ``outcomes``: the table of what each answer means.
"""
