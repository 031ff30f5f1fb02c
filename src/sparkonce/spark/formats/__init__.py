"""The sinks as Spark data sources: ``df.writeStream.format("sparkonce-kafka")``, and the same for ``df.write``.

Spark runs a Python data source in separate processes: one before a batch's tasks, the tasks, and one after them. The
first process claims the log and judges the batch, the tasks prepare it, and the last process decides and commits it.

- ``sources``: registers the formats with a session, and has the data sources that Spark calls, with the writer of a
  query's batches, and the writer of a batch job, which is decided once.
- ``options``: turns options into sink settings, and opens the stores of checkpoints and logs.
- ``ends``: the work of both writers before and after the tasks, in processes that share a run.
- ``task``: the work of both writers in a task.
"""
