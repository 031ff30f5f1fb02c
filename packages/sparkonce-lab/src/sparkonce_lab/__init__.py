"""Proves sparkonce on real servers: ``sparkonce verify``, ``sparkonce demo``, and a Kafka with ``sparkonce broker``.

A run injects faults into a real query and its servers. A seed determines the faults. What happens is recorded and then
judged. Only ``query`` imports Spark. The product never imports this package: it finds the commands through the entry
points in the group ``sparkonce.commands``.

- ``cli``: the commands
- ``ask``: validates the command line; ``run``: carries out a whole run; ``errors``: the error that a run raises
- ``workload``: generates rows with a known correct result; ``feed``: writes them to the source
- ``query``: the query, which runs in a separate process; ``child``: controls that process from the verifier
- ``faults``: names the faults; ``schedule``: draws them; ``possible``: finds those that cannot be injected here
- ``conduct``: keeps the query running and brings it to the point of a fault; ``strike``: injects the faults
- ``systems``: the servers that the query writes to
- ``watch``: observes the query while it runs; ``reading``: reads all systems at the end
- ``checkpoint``: the checkpoint's disk, or the user's store; ``clock``: a fake clock
- ``history``: records a run; ``checkers``: judge it and return ``verdicts``; ``report``: presents the result
- ``demo``: a short run with a fixed schedule, compared with Spark's own sink
- ``rig``: starts servers on this machine and breaks their connections
- ``kafka``: queries a Kafka server; ``registry``: a test double of a Schema Registry; ``forwarding``: wraps a sink
"""
