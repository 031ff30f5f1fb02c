"""How long a decision log and the sinks remember batches. The log must never outlive a sink's memory.

A sink answers for every batch that the log still names: whether its transactions are committed. So each sink keeps its
markers for `SINKS_KEEP_BATCHES`, twice what the log keeps, and tidies up only now and then.
"""

from __future__ import annotations

KEEP_BATCHES = 100
"""How many batches' decisions the log keeps at least."""

TIDY_EVERY_BATCHES = 20
"""How many decisions the log may have beyond that before it is tidied."""

SINKS_KEEP_BATCHES = 2 * KEEP_BATCHES
"""For how many batches a sink keeps what tells committed from lost."""
