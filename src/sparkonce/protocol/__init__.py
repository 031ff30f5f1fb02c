"""The commit protocol: pure values and decisions, without I/O, clock, randomness or Spark.

The decisions:

- ``coordinator``: the table of (phase, event) with its handlers, in the order of a batch; begin here
- ``healing``: how lost transactions of a decided batch are written again
- ``sweeping``: when a run sweeps what losing task attempts left open, a small state machine of its own
- ``traces``: whether the log is an old copy

The values:

- ``handles``: a prepared transaction, and the outcome of finishing it
- ``ownership``: which run a transaction belongs to, by its name
- ``view``: the records of the log, and what a reader knows of it; ``horizon``: how many batches it keeps
- ``codec``: the file format of records and floors
- ``effects``, ``events``, ``state``: what the coordinator asks for, reacts to, and knows
"""
