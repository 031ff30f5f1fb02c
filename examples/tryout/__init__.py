"""Tests an example: starts a separate broker, sends sample rows, and counts the output. It is not part of any job.

``run`` starts everything, ``trial`` sends rows and judges the output, ``checkpoint`` reads Spark's records of its
batches, and ``windows`` uses them to determine which rows belong together. ``etl``, ``windowed_sum`` and ``enrichment``
provide the samples.
"""

from tryout.enrichment import EnrichmentSample
from tryout.etl import EtlSample
from tryout.run import try_out
from tryout.windowed_sum import SumSample

__all__ = ["EnrichmentSample", "EtlSample", "SumSample", "try_out"]
