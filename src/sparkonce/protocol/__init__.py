"""The commit protocol: pure values and decisions, without I/O, clocks, randomness or Spark.

Decisions:

- ``coordinator``: the table of (phase, event) with its handlers, in the order of a batch. Start reading here.
- ``healing``: how lost transactions of a decided batch are rewritten
- ``sweeping``: when a run sweeps transactions that losing task attempts left open (a separate, small state machine)
- ``traces``: whether the log is an old copy

Values:

- ``handles``: a prepared transaction, and the outcome of finishing it
- ``ownership``: which run a transaction belongs to, derived from its name
- ``view``: the records of the log, and a reader's view of it; ``horizon``: how many batches it retains
- ``codec``: the file format of records and floors
- ``effects``, ``events``, ``state``: what the coordinator requests, what it reacts to, and what it knows
"""
