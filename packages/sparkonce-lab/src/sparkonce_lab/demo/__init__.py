"""``sparkonce demo``: a preset of the verifier that kills a query three times during its commits, and shows it live.

- ``query``: the verifier's query with sparkonce or with Spark's own sink
- ``scenario``: kills the query with sparkonce, then with Spark's own sink
- ``result``: counts rows, and proves from broker and log that a kill hit its point; ``console`` shows the results
"""
