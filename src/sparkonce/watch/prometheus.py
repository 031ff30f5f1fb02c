"""Exports the figures of all queries of this process to Prometheus.

The endpoint is a Python server, not a source in the JVM's metrics registry, so a batch costs no call into the JVM,
metrics have labels, and nothing has to be configured in Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparkonce.arguments import whole_number
from sparkonce.errors import ConfigurationError
from sparkonce.protocol.state import Phase
from sparkonce.watch.figures import BATCH_BUCKETS_S, Figures, InDoubt

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

_LABELS = ("query", "name")
_HIGHEST_PORT = 65_535


def serve_metrics(port: int = 9464, host: str = "127.0.0.1") -> int:
    """Serves the figures of all queries of this process at ``http://host:port/metrics``, until the process ends.

    Args:
        port: The port; 0 for any free port.
        host: The address to listen on. Anyone who can reach it sees the names of queries and sinks: there is no login.

    Returns:
        The port.

    Raises:
        ConfigurationError: If prometheus-client is not installed, or the address cannot be used.
    """
    whole_number("port", port, least=0)
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise ConfigurationError(
            "Metrics need the package prometheus-client.", next_step="pip install 'sparkonce[metrics]'"
        ) from None
    registry = CollectorRegistry()
    register(registry)
    try:
        server, _ = start_http_server(port, host, registry=registry)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"port={port!r}, host={host!r}: nothing can listen there: {error}.",
            next_step=f"Choose another port, up to {_HIGHEST_PORT}, or 0 for one that is free.",
        ) from error
    return int(server.server_port)


def register(registry: CollectorRegistry) -> None:
    """Adds the figures of all queries of this process to your own registry. Call it once per registry."""
    registry.register(QueryCollector())


class QueryCollector:
    """Collects the figures of the queries that this process has run, each time Prometheus asks for them."""

    def collect(self) -> Iterator[Metric]:
        """Returns the metrics; see docs/watching.md."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        now_s = time.time()

        def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
            return CounterMetricFamily(f"sparkonce_{name}", text, labels=(*_LABELS, *labels))

        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"sparkonce_{name}", text, labels=(*_LABELS, *labels))

        batches = counter("batches", "Committed batches.")
        recovered = counter("recovered_batches", "Committed batches that an earlier run had decided.")
        transactions = counter("transactions", "Committed transactions.")
        healed = counter("healed_transactions", "Transactions that were lost and written again.")
        swept = counter("swept_transactions", "Transactions that were left open, and aborted.")
        rows = counter("rows", "Rows that were committed, by sink.", "sink")
        stops = counter("stops", "Runs that an error ended, by the error's name.", "error")
        phases = counter("phase_seconds", "Wall time by phase.", "phase")
        durations = HistogramMetricFamily("sparkonce_batch_seconds", "Wall time of a batch.", labels=_LABELS)
        doubt = gauge("in_doubt_transactions", "Transactions that are prepared and not finished.", "sink")
        age = gauge("oldest_transaction_seconds", "The age of the oldest open transaction; 0 without one.", "sink")
        timeout = gauge("transaction_timeout_seconds", "How long a sink's transactions may live.", "sink")
        phase = gauge("phase", "1 for the phase that the query is in.", "phase")
        since = gauge("phase_age_seconds", "How long the query has been in its phase.")
        last = gauge("last_batch", "The newest committed batch.")
        finished = gauge("last_batch_timestamp_seconds", "When it was committed, by the driver's clock.")
        for one in [figures.watched() for figures in Figures.known()]:
            labels, totals = (one.query, one.name), one.totals
            batches.add_metric(labels, totals.batches)
            recovered.add_metric(labels, totals.recovered)
            transactions.add_metric(labels, totals.transactions)
            healed.add_metric(labels, totals.healed)
            swept.add_metric(labels, totals.swept)
            for family, counts in ((rows, totals.rows), (stops, totals.stops), (phases, totals.phase_s)):
                for label, value in counts.items():
                    family.add_metric((*labels, label), value)
            bounds = [*map(str, BATCH_BUCKETS_S), "+Inf"]
            within = [*totals.within, totals.batches]
            durations.add_metric(labels, list(zip(bounds, within, strict=True)), totals.batch_s)
            for sink in one.state.transactional if one.state is not None else ():
                found = one.in_doubt.get(sink, InDoubt())
                doubt.add_metric((*labels, sink), found.transactions)
                opened_s = now_s if found.opened_ms is None else found.opened_ms / 1000
                age.add_metric((*labels, sink), max(0.0, now_s - opened_s))
            for sink, life_s in one.lifetimes_s.items():
                timeout.add_metric((*labels, sink), life_s)
            for each in Phase:
                phase.add_metric((*labels, each.value), int(each is one.phase))
            since.add_metric(labels, one.phase_age_s)
            if one.last is not None:
                last.add_metric(labels, one.last.batch)
                finished.add_metric(labels, (one.last.began_ms + one.last.took_ms) / 1000)
        yield from (batches, recovered, transactions, healed, swept, rows, stops, phases, durations)
        yield from (doubt, age, timeout, phase, since, last, finished)
