"""The sinks as Spark data sources: ``df.writeStream.format("sparkonce-kafka")``, and the same for ``df.write``.

Spark runs a Python data source in three kinds of processes: one before a batch's tasks, the tasks, and one after them.
None of them knows the others. So the first one claims the log and assesses the batch, the tasks prepare, and the last
one decides and commits.

- ``sources``: registers the formats with a session, and has the data sources that Spark calls.
- ``options``: turns options into sink settings, and opens the stores of checkpoints and logs.
- ``writers``: the writer of a query's batches, and the writer of a batch job, which is decided once.
- ``ends``: what both do before and after the tasks, in processes that share a run; ``task``: what they do in a task.
"""
