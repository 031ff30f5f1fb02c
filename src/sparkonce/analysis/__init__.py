"""Says what a query guarantees end to end, which part is the weakest, and what to change.

``facts`` is what was read off a query or its checkpoint, ``sources``, ``engine``, ``sinks`` and ``readers`` are the
rules, ``verdict`` puts them together, and ``model`` is the answer. ``checkpoint`` reads facts off a folder, ``servers``
asks Kafka for some, ``functions`` looks into Python functions. Reading a running query needs Spark:
`sparkonce.spark.plans`.
"""
