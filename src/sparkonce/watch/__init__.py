"""Monitors a running query. A batch reports its phases to one listener; everything else is read from the run's state.

- ``listener``: the query's one listener, which forwards phases and batches to the other modules and to OpenTelemetry
- ``figures``: counts what a query does, and provides its current state
- ``timeline``: stores the newest batches and events in the checkpoint, next to the log, where any process can read them
- ``display``: writes a line per batch to standard error
- ``prometheus``: exports the figures of all queries of a process to Prometheus
"""
