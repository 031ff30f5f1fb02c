"""The sinks as formats of Spark's own: ``df.writeStream.format("sparkonce-kafka")``, and ``df.write`` alike.

Spark runs a data source in Python in three processes: one before a batch's tasks, the tasks, and one after them. None
knows the other. So the first claims and judges the batch, the tasks prepare, and the last decides and commits.

- ``register``: makes the formats known to a session.
- ``sources``: the data sources that Spark calls; ``options``: their options as the settings of a sink.
- ``stores``: where a log or a checkpoint is, by the settings that the session has for its stores.
- ``stream``: the writer of a query's batches; ``job``: the writer of a batch job, decided once.
- ``ends``: what both do before the tasks and after them; ``task``: what they do in a task.
- ``kept``: what a driver's processes keep of a run between them; ``fingerprints``: a hash of each row, by Arrow.
"""
