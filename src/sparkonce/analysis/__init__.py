"""Says what a query guarantees end to end, which part is the weakest, and what to change.

What was seen of a query:

- ``facts``: the facts as values.
- ``checkpoint``: reads them off a checkpoint folder; a running query's are read by `sparkonce.spark.explain`.
- ``given``: reads them off what a user gives as ``sink=``; ``functions`` looks into Python functions.
- ``servers``: asks Kafka's brokers for some.
- ``script``: finds out if a file may start another query after the place where it waits.

What follows from it:

- ``sources``, ``engine``, ``sinks``, ``readers``: the rules, one module a part of the query.
- ``verdict``: applies them all.
- ``findings``: one finding, and the part that it is about.
- ``model``: the answer; ``table`` renders it.
- ``durations``: reads and writes ``2h`` and ``1 day 12 hours``.
"""
