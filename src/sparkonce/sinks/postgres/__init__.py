"""PostgreSQL as a part of the two-phase commit."""
