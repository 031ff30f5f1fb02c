"""``sparkonce demo``: a real query on a real broker, killed in the middle of its commits, and counted.

It is made of the verifier's parts: workload, feeder, query, driver and checkers are those of `sparkonce_lab`. Its own:

- ``query`` is the verifier's query with Kafka alone, or with Spark's own sink; ``halfway`` adds a point to hold it at.
- ``scenario`` feeds the query, kills it, starts it again, and counts, with sparkonce and with Spark's own sink.
- ``result`` holds the counts, and asks broker and log whether a kill happened at its point; ``console`` shows them.
"""
