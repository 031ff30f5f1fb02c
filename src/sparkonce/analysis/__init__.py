"""Says what a query guarantees end to end, which part is the weakest, and what to change.

What was seen of a query:

- ``facts``: the facts as values, and durations such as ``2h``.
- ``checkpoint``: reads them off a checkpoint folder; a running query's are read by `sparkonce.spark.explain`.
- ``given``: reads them off what a user gives as ``sink=``, and off Python functions.
- ``servers``: asks Kafka's brokers for some.

What follows from it:

- ``sources``, ``engine``, ``sinks``: the rules for the parts of a query; ``sinks`` has those for its readers, too.
- ``findings``: a part, with what was found about it.
- ``explanation``: applies all rules, and is the answer; ``table`` renders it.
"""
