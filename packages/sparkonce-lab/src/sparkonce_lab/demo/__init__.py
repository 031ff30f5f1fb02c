"""``sparkonce demo``: a real query on a real broker, killed in the middle of its commits, and counted.

It is made of the verifier's parts: workload, feeder, query, driver and checkers are those of `sparkonce_lab`. Its own:

- ``query`` is the verifier's query with Kafka alone, or with Spark's own sink; ``halfway`` adds a point to hold it at.
- ``scenario`` feeds the query, starts it again after each kill, and counts; ``variants`` hold and kill it.
- ``proof`` asks broker and log whether a kill happened at its point.
- ``result`` holds the counts, ``console`` shows them, ``run`` puts all together.
"""
