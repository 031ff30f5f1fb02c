"""The horizon: the number of batches that the decision log and the sinks remember.

A sink must be able to say, for every batch that the log still names, whether its transactions are committed. So each
sink keeps its markers for `SINKS_KEEP_BATCHES`, twice as long as the log, and tidies only now and then.
"""

from __future__ import annotations

KEEP_BATCHES = 100
"""The least number of batches whose decisions the log keeps."""
TIDY_EVERY_BATCHES = 20
"""The number of decisions beyond that, at which the log is tidied."""
KEEP_RECORDS = 1_000
"""The most records of a log when a run claims: a query that fails at every start leaves a claim each time."""
SINKS_KEEP_BATCHES = 2 * KEEP_BATCHES
"""The number of batches for which a sink keeps what tells committed from lost."""
