"""Proves sparkonce on real servers: ``sparkonce verify``, ``sparkonce demo``, and a Kafka with ``sparkonce broker``.

Faults are injected, according to a seed, into a real query and its servers. What happens is recorded and judged. Only
``query`` imports Spark, and the product never imports this package: it finds the commands through the entry points in
the group ``sparkonce.commands``.

- ``cli``: the commands
- ``ask``: validates the command line; ``run``: carries out a whole run; ``errors``: its error
- ``workload``: generates rows whose correct result is known; ``feed``: writes them to the source
- ``query``: the query, in its own process; ``child``: that process from the verifier's side
- ``faults``: names the faults; ``schedule``: draws them; ``possible``: which of them cannot be injected here
- ``conduct``: keeps the query running and brings it to where it is struck; ``strike``: injects the faults
- ``systems``: the servers that the query writes to
- ``watch``: observes the query while it runs; ``reading``: reads all systems at the end
- ``checkpoint``: the checkpoint's disk, or the user's store; ``clock``: a fake clock
- ``history``: records a run; ``checkers``: judge it and return ``verdicts``; ``report``: presents it
- ``demo``: a short run with a fixed schedule, compared with Spark's own sink
- ``rig``: starts servers on this machine and breaks their connections
- ``kafka``: queries a Kafka server; ``registry``: a test double of a Schema Registry; ``forwarding``: wraps a sink
"""
