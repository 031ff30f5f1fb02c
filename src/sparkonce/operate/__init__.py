"""Tools for operators, which work on checkpoints and servers without a Spark session.

- ``checkpoint``: reads a query's state, whether its next start would succeed, and the records of its log
- ``systems``: reads the operator's file, which describes servers and the sinks of queries
- ``transactions``: lists open transactions on the servers, with the log's verdict on each
- ``resolve``: ends a query's open transactions, according to its log, or without a log if the checkpoint is gone
- ``doctor``: runs the checks of a start
"""
