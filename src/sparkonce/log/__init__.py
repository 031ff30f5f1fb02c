"""The decision log: one linear log a query, beside Spark's own checkpoint."""
