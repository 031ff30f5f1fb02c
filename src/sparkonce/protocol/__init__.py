"""The commit protocol: pure values and decisions, without I/O, clocks, randomness or Spark.

Decisions:

- ``coordinator``: the table of (phase, event) with its handlers, in the order that a batch goes through them. Start
  reading here.
- ``healing``: plans how lost transactions of a decided batch are rewritten
- ``sweeping``: a small, separate state machine that decides when a run aborts transactions of losing task attempts
- ``traces``: detects a log that is an old copy

Values:

- ``handles``: a prepared transaction, and the outcome of finishing it
- ``ownership``: which run a transaction belongs to, derived from its name
- ``view``: the records of the log, and a reader's view of the log
- ``horizon``: the number of batches that the log and the sinks remember
- ``codec``: the file format of records and floors
- ``effects``, ``events``, ``state``: the coordinator's requests, the events that answer them, and its state
"""
