"""Watches a query that runs. A batch tells one listener of its phases; all else is read from the run's state.

- ``listener``: the one listener of a query, which passes its phases and batches on to the others
- ``figures``: counts what a query does, and shows it as it is now
- ``timeline``: keeps the newest batches and events in the checkpoint, beside the log, where any process reads them
- ``display``: shows the progress on standard error; ``terminal`` is the line that is kept up to date
- ``prometheus``: gives the figures of all queries of a process to Prometheus
- ``spans``: gives each batch to OpenTelemetry, with its phases
"""
