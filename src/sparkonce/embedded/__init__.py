"""A real Kafka on this machine, for trying out and for tests: no Docker, no download by hand.

``jars`` fetches Java libraries, ``properties`` renders the brokers' settings, ``process`` owns one Java process,
``broker`` puts them together, and ``detached`` keeps a cluster that outlives the command which started it.
"""
