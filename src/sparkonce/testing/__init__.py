"""For the tests of others: the conformance suite for a sink of your own, and what to ask a Kafka server."""
