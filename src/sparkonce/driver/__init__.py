"""The driver's side without Spark: it carries out what the coordinator asks for.

- ``run``: one run of a query; asks the coordinator, and ``perform`` has each effect carried out by one of these:
- ``halves``: a run whose batches are begun in one process, and ended in another
- ``resume``: the point at which a query resumes; ``mending``: repairs Spark's files after a crash of the machine
- ``start``: the look at log and servers before the claim; ``went_back``: the check for servers that went back after it
- ``write``: a batch is written, again if need be; ``same_target``: refuses to split a decided batch over two places
- ``validate``: what speaks against deciding it
- ``put``: records are put into the log, and old ones tidied away
- ``finish``: transactions are committed and aborted, and sinks told that a batch is committed
- ``sweeper``: what nobody will decide is aborted
- ``sinks``: the sinks of a run, with their committers and facts; ``work``: what the engine does with a batch's plan
- ``positions``: those who are told how far the query has read; ``lookouts``: looks at what others do to its readers
- ``outage``: the one loop that tries again; ``timing``: for how long; ``ages``: how long transactions live
- ``stops``: a stop as the error that the user sees; ``progress``: what a batch did
"""
