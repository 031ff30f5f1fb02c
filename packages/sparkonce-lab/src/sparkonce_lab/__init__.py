"""Proves sparkonce on real servers: ``sparkonce verify``, ``sparkonce demo``, and a Kafka by ``sparkonce broker``.

Faults are injected by seed into a real query and its servers; what happens is recorded and judged. Nothing here but
``query`` imports Spark, and the product never imports this package: it finds the commands by the entry points of the
group ``sparkonce.commands``.

- ``cli`` has the commands.
- ``ask`` checks the command line, ``run`` carries out a whole run, ``errors`` has its error.
- ``workload`` makes rows whose right result is known, ``feed`` writes them to the source.
- ``query`` is the query, in a process of its own; ``child`` is that process as the verifier sees it.
- ``faults`` names the faults, ``schedule`` draws them, ``possible`` says which cannot be injected here.
- ``conduct`` keeps the query running and brings it to where it is struck; ``strike`` injects the faults.
- ``systems`` are the servers that the query writes to.
- ``watch`` looks on while the query runs, ``reading`` reads all systems in the end.
- ``checkpoint`` is the disk of the checkpoint, or the user's store; ``clock`` is a fake clock.
- ``history`` records a run; ``checkers`` judge it and give ``verdicts``; ``report`` shows it.
- ``demo`` is a short run with a fixed schedule, beside Spark's own sink.
- ``rig`` starts servers on this machine and breaks their connections.
- ``kafka`` asks a Kafka server, ``registry`` is a double of a Schema Registry, ``forwarding`` wraps a sink.
"""
