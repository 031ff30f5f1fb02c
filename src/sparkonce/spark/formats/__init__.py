"""The sinks as formats of Spark's own: ``df.writeStream.format("sparkonce-kafka")``, and ``df.write`` alike.

Spark runs a data source in Python in three processes: one before a batch's tasks, the tasks, and one after them. None
knows the other. So the first claims and judges the batch, the tasks prepare, and the last decides and commits.

- ``sources``: makes the formats known to a session, and has the data sources that Spark calls.
- ``options``: the options as settings of a sink, and the stores of checkpoints and logs.
- ``writers``: the writer of a query's batches, and that of a batch job, decided once.
- ``ends``: what both do before the tasks and after them, in processes that share a run; ``task``: the part of a task.
"""
