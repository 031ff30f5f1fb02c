"""The driver's side, without Spark: it carries out the effects that the coordinator requests.

In the order in which a batch passes them:

- ``run``: one run of a query; it delegates the coordinator's effects to the other modules
- ``start``: the checks before and after the claim, the batch at which a query resumes, and repairs after a crash
- ``prepare``: runs the batch's plan, repeatedly if necessary, and asks for objections before the batch is decided
- ``work``: the interface to the engine, which runs the plan. Its tasks call `sparkonce.executor`
- ``put``: puts claims and decisions into the log, and deletes old ones. The put of a ``Commit`` is the commit point
- ``finish``: commits and aborts transactions, and tells sinks that a batch is committed
- ``sweeper``: aborts orphaned transactions, which no decision will ever name
- ``positions``: publishes the query's positions

What these share:

- ``split_run``: a run whose batches begin in one process and end in another
- ``sinks``: the sinks of a run, with their committers, facts and monitors
- ``lifetimes``: keeps a batch from outliving its transactions
- ``outage``: the one retry loop, and its timeouts
- ``stops``: turns a stop into the error that the user sees
- ``progress``: sums up a batch
"""
