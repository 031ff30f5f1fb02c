"""Helpers for tests, of this project and of others.

- ``conformance`` is the suite for a sink of your own: ``hooks`` is what it asks of you, ``scene`` is shared.
  The checks are ``commit_checks``, ``abort_checks``, ``sweep_checks``, ``trace_checks`` and ``system_checks``;
  ``elsewhere`` commits in another process.
- ``systems`` has a witness for each system, which asks it without the product's code.
- ``kafka`` asks a Kafka server, ``kafka_reader`` reads a topic all the time, ``matchers`` recognise requests.
- ``forwarding`` is a sink in another one's place.
- ``registry`` is a double of a schema registry, ``compatibility`` its rule.
"""
