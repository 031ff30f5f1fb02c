"""Tools for operators, for checkpoints and servers, without a Spark session.

- ``checkpoint``: a query's state, whether its next start would be accepted, and the records of its decision log
- ``systems``: the operator's file: the servers that can be queried, and a query's sinks
- ``transactions``: open transactions on the servers, with the log's verdict on each
- ``resolve``: ends what a query has left open, according to its log, or without a log if the checkpoint is gone
- ``doctor``: the checks of a start; ``java``: the Java that Spark runs on
"""
