"""Tries an example out: a broker for it alone, a sample of rows, and a count of what came out. No part of any job.

``run`` starts everything, ``trial`` sends and judges, ``checkpoint`` reads what Spark has written down about its
batches, ``windows`` works out from that which rows belong together, and ``etl``, ``windowed_sum`` and ``enrichment``
are the samples.
"""

from tryout.enrichment import EnrichmentSample
from tryout.etl import EtlSample
from tryout.run import try_out
from tryout.windowed_sum import SumSample

__all__ = ["EnrichmentSample", "EtlSample", "SumSample", "try_out"]
