"""The tools of operators, for checkpoints and servers, without a session of Spark.

- ``checkpoint``: where a query stands, and whether its next start is taken
- ``history``: the records of its decision log, in order
- ``systems``: the servers that can be asked, and how they are reached
- ``sinks``: a query's sinks, made again from an operator's file
- ``resolve``: ends what a query has left open, by its log
- ``abandon``: ends what a query has left open whose checkpoint is gone
- ``doctor``: the checks of a start, ``java``: the Java that Spark runs on
- ``transactions``: the log's verdict on what is open there
"""
