"""Redis: rows staged there by workers, and applied by scripts once the batch is decided.

For both halves:

- ``sink``: the sink's settings; it puts the parts together.
- ``nodes``: the connections to a server, or to the nodes of a cluster.
- ``names``: the sink's keys, and the ledger's entries.
- ``hash_slots``: computes the hash slots of a cluster.
- ``scripts``: the scripts that run inside Redis.

On the executors:

- ``shape``: which columns make which commands.
- ``encoding``: turns Arrow batches into chunks of commands.
- ``writer``: stages chunks, or writes them at once.

On the driver:

- ``preflight``: checks the server.
- ``committer``: commits and aborts; ``applying`` has staged chunks applied.
- ``orphans``: lists unfinished transactions for ``sparkonce transactions list``.
- ``inspection``: reads the state of transactions without changing it.
- ``outcomes``: the table of what each answer means.
"""
