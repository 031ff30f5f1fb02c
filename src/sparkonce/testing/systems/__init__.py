"""One witness a system, for verifier, crash matrix and conformance: it asks the system without the product's code.

- ``base`` names the questions.
- ``mariadb`` asks MariaDB or MySQL, ``postgres`` PostgreSQL.
"""
