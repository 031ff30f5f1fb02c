"""Kafka, with transactions that workers prepare and the driver commits.

For both halves:

- ``sink``: the sink's settings; it puts the parts together.
- ``settings``, ``translation``, ``oauth_tokens``: librdkafka's settings for the writers, translated for the driver.

On the executors:

- ``writer``: fills one transaction.
- ``rows``: turns Arrow columns into the arguments of a producer.
- ``pooled_producer``: opens one producer of librdkafka; ``producer_pool`` keeps some ready.
- ``batch_producer``: hands rows to librdkafka by the batch; ``librdkafka`` declares the functions that it calls;
  ``loans`` keeps the rows' memory until they have arrived, ``partitioner`` chooses their partitions.
- ``stalled_rows``: finds that the topic of rows that do not arrive is gone.
- ``topic_limits``: asks how large rows of the topics that they name may be.
- ``client_log``: thins out librdkafka's log.

On the driver:

- ``preflight``, ``topic``: check the cluster and its topic.
- ``committer``: ends transactions; ``outcomes`` is the table of what each answer means.
- ``retention``, ``leader_check``: find rows that were deleted, and partitions without a leader, before a commit.
- ``lookout``: finds who holds back readers.
- ``transaction_client``, ``partitions``: ask transaction coordinators, and leaders of partitions.
- ``orphans``: lists what is open, for ``sparkonce transactions list``.
- ``connection``, ``waiting``: send requests, and repeat them until a deadline.
"""
