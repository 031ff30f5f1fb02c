"""Checks a query before Spark runs its first batch.

- ``given``: its arguments: session, frame, trigger, options, checkpoint folder.
- ``classic``: that no part of the query is of Spark Connect.
- ``checkpoint``: that the checkpoint is the running query's.
- ``checks``: where the query resumes, and its sources from there.
- ``source_checks``: that the brokers of its sources answer, and know their topics.
- ``topics``: that its topics were not deleted and made again.
- ``first_batch``: the cost of its first batch; ``slots`` counts the tasks that write it.
- ``executors``: that executors have the driver's sparkonce and what the sinks need, by one small job.
- ``kafka_admin``: Kafka's admin client in Spark's JVM.
"""
