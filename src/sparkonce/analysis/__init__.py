"""Explains what a query guarantees end to end, which part is the weakest, and what to change.

Collecting facts about a query:

- ``facts``: the facts as values, and durations such as ``2h``
- ``checkpoint``: reads them from a checkpoint folder. `sparkonce.spark.explain` reads them from a running query.
- ``arguments``: reads them from the argument ``sink=``
- ``servers``: queries Kafka's brokers for facts about topics and limits

Drawing conclusions:

- ``sources``, ``engine``, ``sinks``: the rules for the parts of a query. ``sinks`` also has the rules for readers.
- ``findings``: a part of a query, with the findings about it
- ``explanation``: applies all rules, and defines the result; ``table`` renders the result
"""
