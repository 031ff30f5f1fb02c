"""The driver's side without Spark: it carries out the effects that the coordinator asks for.

- ``run``: one run of a query; asks the coordinator, and has one of these carry out each effect:
- ``halves``: a run whose batches are begun in one process, and ended in another
- ``start``: the checks before the claim and after it, the batch at which a query resumes, and repairs after a crash
- ``write``: writes a batch, repeatedly if necessary, and asks for objections before it is decided
- ``put``: puts records into the log, and deletes old ones
- ``finish``: commits and aborts transactions, and tells sinks that a batch is committed
- ``sweeper``: aborts the transactions that nobody will decide
- ``sinks``: the sinks of a run, with their committers, facts and monitors
- ``work``: what the engine does with a batch's plan; ``positions``: the reporters of how far the query has read
- ``outage``: the one retry loop, and its times
- ``stops``: the error that the user sees for a stop; ``progress``: what a batch did
"""
