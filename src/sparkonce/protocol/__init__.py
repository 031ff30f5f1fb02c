"""The commit protocol: pure values and decisions, without I/O, clock, randomness or Spark.

Read in this order: ``handles`` and ``outcomes`` (the values), ``ownership`` (who may touch what), ``records`` and
``view`` (what the log says), ``coordinator`` (what to do next), ``sweeping`` (when to look for what losers left open),
``traces`` (is the log the newest?), ``codec`` (how it is written down).
"""
