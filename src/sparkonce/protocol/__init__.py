"""The commit protocol: pure values and decisions, without I/O, clock, randomness or Spark.

The values:

- ``handles`` and ``outcomes``: a prepared transaction, and what finishing it gave
- ``ownership``: whose a transaction is, by its name
- ``records`` and ``view``: what is put into the log, and what a reader knows of it; ``horizon``: how long it is kept
- ``codec``: how they are written down; ``plain``: the JSON that is read again
- ``effects``, ``events``, ``state``: what the coordinator asks for, is told, and knows

The decisions:

- ``coordinator``: the table of (phase, event); begin here
- its handlers, in the order of a batch: ``claiming``, ``preparing``, ``deciding``, ``finishing``, ``closing``; and
  ``stopping``
- ``healing``: how lost transactions of a decided batch are written again
- ``sweeping``: when a run sweeps what losers left open, a small machine of its own
- ``traces``: whether the log is an old copy
"""
