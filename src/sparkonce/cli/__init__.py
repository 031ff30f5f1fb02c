"""The command line.

- ``main``: the command ``sparkonce``, with these commands:
- ``new``: writes a first project.
- ``run``: runs a job's file, and ends its queries in order.
- ``explain``: says what a query guarantees.
- ``checkpoint``: shows where a query stands, and what its next start does.
- ``transactions``: lists what is open on servers, and says what is to come of it.
- ``resolve``: ends what a query has left open; two more commands of ``transactions``.
- ``ui``: serves a live page on queries and systems.
- ``doctor``: makes the checks of a start.
- ``broker``: starts and stops a Kafka broker on this machine.
- ``files``: compacts the files of a files sink.
- ``demo``, ``verify``: run real queries under faults.
- ``conf`` reads ``--conf``, the settings of a checkpoint's store.
- ``output``: shows a result as a table, JSON or YAML.
- ``errors``: shows sparkonce's errors without a traceback.
"""
