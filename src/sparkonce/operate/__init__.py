"""The tools of operators, for checkpoints and servers, without a session of Spark.

- ``checkpoint``: where a query stands, whether its next start is accepted, and the records of its decision log
- ``systems``: an operator's file: the servers that can be asked, and a query's sinks
- ``transactions``: the log's verdict on what is open there
- ``resolve``: ends what a query has left open, by its log, or without one if the checkpoint is gone
- ``doctor``: the checks of a start, ``java``: the Java that Spark runs on
"""
