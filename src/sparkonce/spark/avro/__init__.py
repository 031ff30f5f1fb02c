"""Columns of Avro: with a Schema Registry's header, and plain ones of a schema file."""
