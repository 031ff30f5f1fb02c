"""PostgreSQL, whose transactions workers prepare or stage and the driver commits. See `sparkonce.sinks.sql`."""
