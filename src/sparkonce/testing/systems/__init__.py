"""One witness a system, for verifier and crash matrix, and for conformance of MariaDB, Redis and S3.

A witness asks the system itself, not through the product's code.

- ``base`` names the questions.
- ``kafka``, ``files``, ``s3``, ``delta``, ``postgres``, ``mariadb``, ``redis`` and ``rabbitmq`` ask the system of
  that name.
"""
