"""Kafka, with transactions that workers prepare and the driver commits.

For both halves:

- ``sink``: the sink's settings; it wires the other parts together.
- ``settings``: librdkafka's settings for the writers, translated for the driver.

On the executors:

- ``writer``: fills one transaction.
- ``rows``: turns Arrow columns into the arguments of a producer; ``partitioner`` chooses their partitions.
- ``pooled_producer``: opens one librdkafka producer; ``producer_pool`` keeps some ready.
- ``batch_producer``: passes whole batches of rows to librdkafka; ``librdkafka`` declares the functions that it calls.

On the driver:

- ``preflight``: checks the cluster and its topic.
- ``committer``: ends transactions; ``outcomes`` maps each answer of a broker to an outcome.
- ``transaction_client``: sends requests to transaction coordinators and partition leaders, over a ``connection``.
- ``blocking``: finds the transactions that block readers.
- ``orphans``: lists open transactions for ``sparkonce transactions list``.
"""
