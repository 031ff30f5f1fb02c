"""``sparkonce demo``: a real query on a real broker, killed in the middle of its commits, with its rows counted.

It consists of the verifier's parts: workload, feeder, query, driver and checkers are those of `sparkonce_lab`. It adds:

- ``query``: the verifier's query with only Kafka, or with Spark's own sink; ``halfway`` adds a point to hold it at
- ``scenario``: feeds the query, kills it, restarts it, and counts, with sparkonce and with Spark's own sink
- ``result``: the counts, and a check with broker and log that a kill hit its point; ``console`` shows them
"""
