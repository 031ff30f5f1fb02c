"""The figures of a query that runs, for those who watch it.

- ``figures``: counts what a query does, and knows the phase that it is in; ``doubt`` finds what is open
- ``timeline``: keeps the newest batches and events in the checkpoint, beside the log, where any process reads them
- ``prometheus``: gives the figures of all queries of a process to Prometheus
- ``spans``: gives each batch to OpenTelemetry, with its phases
"""
