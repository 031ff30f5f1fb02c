"""The rim: the only place that knows Spark."""
