"""One witness a system, for verifier, crash matrix and conformance: it asks the system without the product's code.

- ``base`` names the questions.
- ``kafka``, ``files``, ``s3``, ``postgres``, ``mariadb`` and ``redis`` ask the system of that name.
"""
