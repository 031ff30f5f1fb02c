"""RabbitMQ: its server, as streams and queues are reached.

- ``server``: the server's address, its user and TLS.
"""
