"""The driver's side, without Spark: it carries out the effects that the coordinator requests.

- ``run``: one run of a query; it delegates the coordinator's effects to the other modules
- ``split_run``: a run whose batches begin in one process and end in another
- ``start``: the checks before and after the claim, the batch at which a query resumes, and repairs after a crash
- ``write``: writes a batch, repeatedly if necessary, and asks for objections before it is decided
- ``lifetimes``: keeps a batch from outliving its transactions
- ``put``: puts records into the log, and deletes old ones
- ``finish``: commits and aborts transactions, and tells sinks that a batch is committed
- ``sweeper``: aborts orphaned transactions, which no decision will ever name
- ``sinks``: the sinks of a run, with their committers, facts and monitors
- ``work``: the interface to the engine, which runs a batch's plan
- ``positions``: publishes the query's positions
- ``outage``: the one retry loop, and its timeouts
- ``stops``: turns a stop into the error that the user sees
- ``progress``: sums up a batch
"""
