"""The driver's side, without Spark: it carries out the effects that the coordinator requests.

- ``run``: one run of a query; asks the coordinator, and delegates each effect to one of these:
- ``split_run``: a run whose batches begin in one process and end in another
- ``start``: the checks before and after the claim, the batch at which a query resumes, and repairs after a crash
- ``write``: writes a batch, repeatedly if necessary, and asks for objections before it is decided
- ``lifetimes``: whether a batch outlives its transactions
- ``put``: puts records into the log, and deletes old ones
- ``finish``: commits and aborts transactions, and tells sinks that a batch is committed
- ``sweeper``: aborts orphaned transactions, which no decision will ever name
- ``sinks``: the sinks of a run, with their committers, facts and monitors
- ``work``: runs a batch's plan; implemented by the engine
- ``positions``: publishes the query's positions
- ``outage``: the one retry loop, and its timeouts
- ``stops``: turns a stop into the error that the user sees
- ``progress``: sums up a batch
"""
