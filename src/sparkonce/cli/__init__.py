"""The command line.

- ``main``: the command ``sparkonce``, with ``run``, the commands of other packages, and these:
- ``new``: creates a first project
- ``explain``: explains what a query guarantees
- ``checkpoint``: shows a query's state, and what its next start would do
- ``transactions``: lists open transactions on servers, with the log's verdict, and ends those of a query
- ``ui``: serves a live page about queries and systems
- ``doctor``: runs the checks of a start
- ``files``: compacts the files of a files sink
- ``output``: shows a result as a table, JSON or YAML, and sparkonce's errors without a traceback
"""
