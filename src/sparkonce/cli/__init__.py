"""The command line.

- ``main``: the command ``sparkonce``, with these commands:
- ``new``: writes a first project.
- ``run``: runs a job's file, and ends its queries in order.
- ``explain``: says what a query guarantees.
- ``broker``: starts and stops a Kafka broker on this machine.
- ``files``: compacts the files of a files sink.
- ``orphans``: lists the open transactions on a server.
- ``demo``, ``verify``: run real queries under faults.
- ``conf`` reads ``--conf``, the settings of a checkpoint's store.
- ``errors``: shows sparkonce's errors without a traceback.
"""
