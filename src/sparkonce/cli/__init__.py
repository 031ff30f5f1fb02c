"""The command line.

- ``main``: the command ``sparkonce``, with the commands of other packages and these:
- ``new``: writes a first project.
- ``run``: runs a job's file, and ends its queries in order.
- ``explain``: says what a query guarantees.
- ``checkpoint``: shows where a query stands, and what its next start does.
- ``transactions``: lists what is open on servers, and says what is to come of it.
- ``resolve``: ends what a query has left open; two more commands of ``transactions``.
- ``ui``: serves a live page on queries and systems.
- ``doctor``: makes the checks of a start.
- ``files``: compacts the files of a files sink.
- ``conf`` reads ``--conf``, the settings of a checkpoint's store.
- ``output``: shows a result as a table, JSON or YAML.
- ``errors``: shows sparkonce's errors without a traceback.
"""
