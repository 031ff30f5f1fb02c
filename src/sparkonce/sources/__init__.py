"""Where a query's rows come from: settings of Spark's Kafka source, its jars, and a consumer group's offsets."""
