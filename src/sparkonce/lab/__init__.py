"""``sparkonce verify``: a real query on real servers, with faults injected by seed, recorded and judged.

``workload`` makes rows whose right result is known, ``query`` is the query and runs in a process of its own (`child`),
``systems`` are the servers that it writes to, ``faults`` names what may go wrong and ``schedule`` draws when,
``conduct`` carries a schedule out and writes down a ``history``, ``checkers`` judge it, ``report`` shows it.
Nothing here but ``query`` imports Spark.
"""
