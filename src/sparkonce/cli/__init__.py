"""The command line.

- ``main``: the command ``sparkonce``, with ``run``, the commands of other packages, and these:
- ``new``: writes a first project.
- ``explain``: says what a query guarantees.
- ``checkpoint``: shows where a query stands, and what its next start does.
- ``transactions``: lists what is open on servers, says what is to come of it, and ends what a query has left open.
- ``ui``: serves a live page on queries and systems.
- ``doctor``: makes the checks of a start.
- ``files``: compacts the files of a files sink.
- ``output``: shows a result as a table, JSON or YAML, and sparkonce's errors without a traceback.
"""
