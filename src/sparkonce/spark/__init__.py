"""The rim: the only place that knows Spark.

- ``exactly_once``: the object that a user gives to ``foreachBatch``; it puts the parts together.
- ``connect``: the run of a query of Spark Connect, in the process next to its server.
- ``start``: everything that is checked before Spark runs a batch.
- ``checkpoints``: reaches a checkpoint as Spark does.
- ``work``: writes a batch on the executors, by ``slot_tasks``; ``views`` says which rows go to which sink; ``grouping``
  gives it fewer slots, ``arrow_batches`` bounds what a task gets at once; ``worker`` keeps Python workers light, and
  gives them tasks with their needs; ``shipped`` checks those inside them.
- ``formats``: the sinks as formats of Spark's own, ``df.writeStream.format("sparkonce-kafka")``.
- ``read_kafka``: Spark's Kafka source, with the defaults that exactly-once needs.
- ``tables``: the sinks of Delta and Iceberg tables; ``waiting`` reads the rows that wait for them.
- ``show``: progress and errors, as people see them.
- ``job``: runs a user's file and ends its queries.
- ``query_end``: closes a query's connections when it ends, and says so if a program leaves it running.
- ``explain``: reads queries for the analyser.
- ``limits``: the limit of a batch of a source in Python.
- ``plans``: reads plans; ``jvm`` reads and caches objects of the JVM, and looks for jars.
"""
