"""The horizon: the number of batches that the decision log and the sinks remember.

For every batch in the log, a sink must be able to report whether its transactions are committed. Each sink therefore
retains its markers for `SINKS_KEEP_BATCHES` batches, twice as long as the log, and deletes old ones only occasionally.
"""

from __future__ import annotations

KEEP_BATCHES = 100
"""The log retains the decisions of at least this many batches."""
TIDY_EVERY_BATCHES = 20
"""The log is tidied when it holds this many decisions more than `KEEP_BATCHES`."""
KEEP_RECORDS = 1_000
"""A run that claims a longer log tidies it, since a query that fails at every start leaves many claims."""
SINKS_KEEP_BATCHES = 2 * KEEP_BATCHES
"""The number of batches for which a sink retains the markers that distinguish committed from lost."""
