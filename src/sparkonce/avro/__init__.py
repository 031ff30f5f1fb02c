"""Avro schemas and the Schema Registry that keeps them. Knows nothing of Spark."""
