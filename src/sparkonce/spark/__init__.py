"""The outermost layer, which runs a query in Spark.

- ``exactly_once``: the object that a user passes to ``foreachBatch``, which connects the other parts.
- ``connect``: the run of a Spark Connect query, in the process next to its server.
- ``start``: everything that is checked before Spark runs a batch.
- ``checkpoints``: opens a checkpoint the way Spark does.
- ``work``: writes a batch on the executors with ``slot_tasks``. ``views`` assigns rows to sinks, ``grouping`` reduces
  the number of slots, ``arrow_batches`` limits the size of a task's Arrow batches, ``python_worker`` makes Python
  workers fast and lists what they need, and ``shipped`` checks these needs on the worker.
- ``formats``: the sinks as Spark data sources, ``df.writeStream.format("sparkonce-kafka")``.
- ``read_kafka``: Spark's Kafka source, with the defaults that exactly-once needs.
- ``show``: errors as users see them.
- ``job``: runs a user's file and ends its queries.
- ``query_end``: closes a query's connections when the query ends, and warns if a program exits before that.
- ``explain``: reads queries for the analyzer.
- ``plans``: reads plans.
"""
