"""``sparkonce demo``: a real query on a real broker, killed in the middle of its commits, and counted.

``orders`` fills the source, ``pipeline`` is the query and runs in a process of its own, ``crash`` kills it from inside,
``reader`` looks on, ``proof`` asks broker and log whether a kill
happened where it was meant to, ``count`` compares what came out with what must come out, ``run`` is the whole story.
"""
