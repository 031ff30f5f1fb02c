"""``sparkonce demo``: a preset of the verifier that kills a query three times in its commits, shown while it happens.

- ``query``: the verifier's query, which ``halfway`` can also hold in the middle of a batch's commits, or the same query
  with Spark's own sink
- ``scenario``: kills the query with sparkonce, then with Spark's own sink
- ``result``: the counts, and a check with broker and log that a kill hit its point; ``console`` shows them
"""
